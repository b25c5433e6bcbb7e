// Package shop has files that use each other.
package shop

import "example.org/small/internal/a"

// Open uses serve and a method of till.go.
func Open() {
	t := till{}
	t.add(stock)
	_ = a.Exported
}

type counter struct{ sum int }

func (c *counter) reset() { c.sum = 0 }
