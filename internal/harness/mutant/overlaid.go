package mutant

// overlaid says that this binary has the mutants. The overlay replaces this file.
const overlaid = false
