// Package wire lets a [publisher.Loop] ask models by the APIs of their providers: Anthropic's Messages, OpenAI's Chat
// Completions and OpenAI's Responses. It makes the body of a request from a [publisher.ModelRequest], and a
// [publisher.Answer] from the body of the response. It depends on no provider's client; [Model] sends requests through
// the Post method of the official ones.
//
//	client := anthropic.NewClient(option.WithMaxRetries(0)) // the loop waits
//	model := wire.Model(wire.Anthropic, anthropic.MessageNewParams{Model: "…", MaxTokens: 4096}, client.Post)
//
// Promises:
//
//   - Signed content goes back to its provider unchanged: thinking and its signature, redacted thinking, encrypted
//     reasoning. So do blocks, items and members that this package does not know. They are kept in source{} of the
//     answer's parts, so any executor can send the next request.
//   - A part that a form cannot express is an error that names it. An incomplete response is an error, too.
//   - Reasoning of another provider, or without a signature, is not sent: no provider accepts it. The name of a
//     message's participant is not sent to a form without one, and an empty text is not sent to Anthropic.
//   - A request is valid whatever the record or the caller's messages have: see [schema.ValidHistory].
//   - The same conversation gives the same bytes, so that prompt caches work.
//
// A result that is a list of texts and images, as returned by MCP tools, is sent in this form; Chat Completions accepts
// no images there. Any other result that is not a text is sent as JSON.
package wire
