package verify

import "github.com/waymarkio/waymark/schema"

// Judge returns the mistakes in a run's records.
func Judge(fleet, run string, records []schema.Record) []Mistake {
	c, head := newConduct(), schema.NewHead(fleet, run)
	for i := range records {
		p := schema.Prepare(schema.NoKeys, &records[i])
		c.apply(&head, &p)
	}
	return c.mistakes
}

// CheckNames are the names of the checks of accepted events.
func CheckNames() (names []string) {
	for i := range checks {
		names = append(names, checks[i].name)
	}
	return names
}
