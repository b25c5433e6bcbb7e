// Package form reads and writes messages in the formats of model providers: Anthropic's Messages, OpenAI's Chat
// Completions and OpenAI's Responses.
//
// It owns
//
//   - the codec of each form between JSON and [schema.Message] ([Decoder], [Encoder]);
//   - [Detail]: the rest of a provider's message or part besides text, calls and results, in source{} of the message or
//     part;
//   - JSON that is decoded member by member ([Object], [Writer]).
//
// Promises: the encoder of a form writes decoded data JSON-equal, with unchanged strings and numbers. Members and parts
// that it does not know are kept unchanged. The encoder writes the format of the provider's API, or names the part that
// it cannot write.
package form
