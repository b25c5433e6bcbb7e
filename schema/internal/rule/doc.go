// Package rule reads the rules of events' data from the tags of their fields. The checker of package schema and the
// generator of the JSON Schemas both use it, so that a rule is written once.
//
//	check:"required,min=1,max=256,oneof=a|b,text"  what the value must be
//	each:"…"                                       the same for the entries of a list, or the values of a map
//	key:"…"                                        the same for the keys of a map
//	with:"reason=rewind|reopen"                    the value is required if the member reason has one of these values
//
// min and max are bounds of a number, of the bytes of a text, or of the entries of a list or a map. All but required,
// min and max accept an empty text. A number is required by min=1, not by required. A required value that may be in the blob store (content:"large") may be absent if
// the event has a ref for it. An encrypted value may be longer than max.
package rule
