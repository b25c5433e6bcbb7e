// Package wire lets a [publisher.Loop] ask models by the APIs of their providers: Anthropic's Messages, OpenAI's Chat Completions and
// OpenAI's Responses. It makes the body of a request from a [publisher.ModelRequest], and a [publisher.Answer] of the body of the
// response. It knows no provider's client; [Model] asks through the Post method of the official ones.
//
//	client := anthropic.NewClient()
//	model := wire.Model(wire.Anthropic, anthropic.MessageNewParams{Model: "…", MaxTokens: 4096}, client.Post)
//
// Promises:
//
//   - What a provider signs comes back to it to the letter: thinking and its signature, redacted thinking, encrypted reasoning. So do the
//     blocks, items and members that this package does not know. They are in source{} of the parts of the answer, whichever executor asks
//     next, and in the runs that `waymark import` made of transcripts in the forms openai-chat and claude-code.
//   - A part that a form has no place for is an error that names it, as is a response that is no whole answer.
//   - Reasoning of another provider, or without a signature, is not sent: no provider takes it. Nor is the name of a message's
//     participant to a form that has none, an empty text to Anthropic, or an import's note on a message (its usage, its time).
//   - The same conversation gives the same bytes, for the sake of prompt caches.
//
// A result that is a list of texts and images as tools of MCP return them is sent as such; Chat Completions takes no images there. Any
// other result that is no text is sent as JSON.
package wire
