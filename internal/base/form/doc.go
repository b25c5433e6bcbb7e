// Package form reads a model's answer from the format of its provider's API, and writes conversations in it:
// Anthropic's Messages, OpenAI's Chat Completions and OpenAI's Responses.
//
// It owns
//
//   - [Answer]: an answer as a [schema.Message] and calls;
//   - [Detail]: the rest of a provider's message or part besides text and calls, in source{} of the message or part;
//   - [Encoder]: messages as JSON values of the form.
//
// Promises: what the encoder of a form writes for an answer of the form is JSON-equal to it, with unchanged strings
// and numbers. Members and parts that it does not know are kept unchanged. The encoder writes the format of the
// provider's API, or names the part that it cannot write. These are written as the API wants them: ids and arguments
// of calls as [schema.ValidHistory] has them, a chat message without content has the content null, its empty members
// are omitted, and an empty message is not written.
package form
