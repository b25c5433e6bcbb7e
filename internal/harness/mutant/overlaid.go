package mutant

// overlaid says that this binary holds the mutants. The overlay replaces this file.
const overlaid = false
