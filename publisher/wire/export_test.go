package wire

// Due is when the next try is due after a response.
var Due = due
