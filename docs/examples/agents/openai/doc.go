// Command openai is an agent of OpenAI's Responses API, whose reasoning it keeps in the record, encrypted as the API returns it. It orders
// things in a shop that cannot tell one order from the next: an order in doubt waits for a person.
package main
