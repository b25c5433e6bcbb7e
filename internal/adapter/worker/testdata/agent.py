"""The agent of the tests: its task is a list of turns, each a list of tools. LEDGER gets a line for each effect."""
import json, os, signal, sys, time

sys.path.insert(0, os.environ["CLIENTS"])
from waymark import Failure, serve

LEDGER = os.environ["LEDGER"]

def moment(name):
    """Dies, or stands still for as long as FREEZE says, at the first program that comes to this moment."""
    if os.environ.get("AT") != name:
        return
    try:
        os.close(os.open(LEDGER + ".was-there", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP if "FREEZE" in os.environ else signal.SIGKILL)

def has(line):
    return os.path.exists(LEDGER) and line + "\n" in open(LEDGER).read()

def effect(name):
    def run(arguments, call):
        moment("before:" + name)
        line = f"{name} {call['key']}"
        if name != "pay" or not has(line):
            with open(LEDGER, "a") as f:
                f.write(line + "\n")
        moment("after:" + name)
        if name == "fail":
            raise Failure("it is broken", type="broken")
        if name == "slow":
            call["cancelled"].wait()
        return name + " is done"
    return run

def model(request):
    moment(f"model:{request['turn']}")
    plan = next(json.loads(p["content"]) for m in request["messages"] for p in m["parts"] if p.get("content", "").startswith("[["))
    if request["turn"] > len(plan):
        return {"text": "All is done.", "usage": {"input_tokens": 3, "output_tokens": 2}}
    return {"calls": [{"name": name, "arguments": {}} for name in plan[request["turn"] - 1]]}

def own(run):
    """The same work by a loop of its own."""
    for i, turn in enumerate(json.loads(run.task)):
        for name in turn:
            if name == "ask":
                run.set("answer", run.ask("q1", "May it go on?"))
            elif name == "listen":
                heard = run.signals(wait=True)
                run.set("heard", [s["payload"] for s in heard])
                run.consume(*[s["id"] for s in heard])
            else:
                try:
                    run.tool(f"{name}-{i}", name, {}, TOOLS[name]["replay"], effect(name))
                except Failure as e:
                    run.say({"role": "assistant", "parts": [{"type": "text", "content": f"{name}: {e} ({e.fields['type']})"}]})
    return {"answer": run.get("answer"), "heard": run.get("heard")}

TOOLS = {
    "look": {"replay": "pure", "run": effect("look")},
    "pay": {"replay": "idempotent", "run": effect("pay")},
    "book": {"replay": "verify", "run": effect("book"), "verify": lambda call:
             {"outcome": "done", "result": "book is done"} if has("book " + call["key"]) else {"outcome": "not_done"}},
    "mail": {"replay": "hold", "run": effect("mail")},
    "charge": {"replay": "hold", "run": effect("charge"), "ask": "May it charge?"},
    "fail": {"replay": "hold", "run": effect("fail")},
    "slow": {"replay": "hold", "run": effect("slow")},
}
if "OWN" in os.environ:
    listed = [{"name": n, **{k: v for k, v in t.items() if not callable(v)}} for n, t in TOOLS.items() if n != "book"]
    serve("clerk", {n: t for n, t in TOOLS.items() if n != "book"}, run=own)
serve("clerk", TOOLS, model=model)
