package mutant

const Overlaid = overlaid
