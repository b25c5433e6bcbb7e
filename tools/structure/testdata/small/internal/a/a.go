package a

/* A comment
of two lines. */

// Exported is counted.
const Exported, hidden = `a raw string
of three

lines`, 1 // a comment behind code

type List[T any] struct{}

func (List[T]) One()  {}
func (*List[T]) two() {}
