# snippet: courier
from waymark import serve
import time

def send(arguments, call):
    """The tool. If it ran twice for a letter, sent.txt would have the line twice."""
    with open("sent.txt", "a") as f:
        print("a letter to", arguments["to"], file=f)
    return "sent"

def think(request):
    """The model: three seconds for each answer."""
    print("asking the model, turn", request["turn"])
    time.sleep(3)
    people = ["Ann", "Bob", "Cleo", "Dan"]
    if request["turn"] > len(people):
        return {"text": "All letters are sent."}
    return {"calls": [{"name": "send", "arguments": {"to": people[request["turn"] - 1]}}]}

serve("courier", model=think, tools={"send": {
    "replay": "hold", "run": send, "description": "Sends a letter.",
    "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}})
# end of courier
