// Package form reads and writes messages in the forms in which providers of models have them: Anthropic's Messages, OpenAI's Chat
// Completions and OpenAI's Responses. The importers of transcripts and publisher/wire have it in common.
//
// It owns
//
//   - the codec of each form between JSON and [schema.Message] ([Decoder], [Encoder]);
//   - [Detail]: what a message or part of a provider has beyond text, calls and results, in source{} of the message or part;
//   - the JSON that is taken apart member by member ([Object], [Writer]).
//
// Promises: what a decoder read, the encoder of the same form writes JSON-equal, strings and numbers to the letter. Members and parts
// that it does not know are kept as they were. A strict encoder ([Encoder.Strict]) writes what the provider's API takes, or names what
// it cannot write.
package form
