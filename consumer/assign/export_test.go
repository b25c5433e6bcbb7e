package assign

// Owned are the shards that a replica should fold.
func Owned(a *Assigner) []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []int
	for i, owner := range a.owners {
		if owner == a.id {
			list = append(list, i)
		}
	}
	return list
}
