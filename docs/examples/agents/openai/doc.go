// Command openai is an agent of OpenAI's Responses API, which keeps the model's reasoning in the record, encrypted as
// returned by the API. It orders things in a shop that cannot recognise a repeated order, so an order in doubt waits
// for a person.
package main
