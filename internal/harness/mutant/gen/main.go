// Command gen puts all mutants into copies of the product's source, below the directory in its argument. It runs in
// the module's root; "go build -overlay DIR/overlay.json" compiles the copies.
package main

import (
	"fmt"
	"os"

	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/internal/harness/mutant/overlay"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1) //nolint:forbidigo // a main of its own
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments: want the directory to write to", len(args))
	}
	mutants, err := mutant.All()
	if err != nil {
		return err
	}
	_, err = overlay.Write(".", args[0], mutants)
	return err
}
