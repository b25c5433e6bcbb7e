"""The agent of the tests: its task is a list of turns, each a list of tools. LEDGER gets a line for each effect.
Payments and bookings are files named by the key, so that they are made at most once, in one step."""
import asyncio, json, os, signal, sys, threading, time

sys.path.insert(0, os.environ["CLIENTS"])
from waymark import Failure, serve

LEDGER = os.environ["LEDGER"]

def moment(name):
    """Takes its time. The first program that comes to the moment AT dies, or stands still."""
    if "TAKES" in os.environ:
        time.sleep(float(os.environ["TAKES"]))
    if os.environ.get("AT") != name:
        return
    try:
        with open(LEDGER + ".was-there", "x") as f:
            f.write(str(os.getpid()))
    except FileExistsError:
        return
    # To this thread: one for the process may reach another thread first, and this one would go on for a moment.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if "FREEZE" in os.environ else signal.SIGKILL)

def put(name, key, text):
    """Makes the file of a key, unless there is one. Returns what it says."""
    path = f"{LEDGER}.{name}.{key}"
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w") as f:
        f.write(text)
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    os.remove(new)
    return open(path).read()

def effect(name):
    def run(arguments, call):
        moment("before:" + name)
        if name == "pay":
            put(name, call["key"], "done")
        elif name == "book":
            said = put(name, call["key"], "done")
            if said.startswith("refused") and int(said.split()[1]) > call["epoch"]:
                raise Failure("another executor was told that this was not done")
            if said != "done":
                with open(f"{LEDGER}.book.{call['key']}", "w") as f:
                    f.write("done")
        else:
            with open(LEDGER, "a") as f:
                f.write(f"{name} {call['key']}\n")
        moment("after:" + name)
        if name == "fail":
            raise Failure("it is broken", type="broken")
        if name == "odd":
            return {"odd": {1}}
        if name == "deep":
            deep = []
            for _ in range(100000):
                deep = [deep]
            return deep
        if name == "gone":
            raise asyncio.CancelledError("it is gone")
        if name == "exit":
            sys.exit("it is gone")
        if name == "half":
            return "half a character: \ud83d"
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
            elif name == "nested":
                run.set("answer", run.tool("nested", name, {}, "pure", lambda *_: run.ask("q1", "May it go on?")))
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
             {"outcome": "done", "result": "book is done"} if put("book", call["key"], f"refused {call['epoch']}") == "done" else {"outcome": "not_done"}},
    "mail": {"replay": "hold", "run": effect("mail")},
    "charge": {"replay": "hold", "run": effect("charge"), "ask": "May it charge?"},
    "fail": {"replay": "hold", "run": effect("fail")},
    "odd": {"replay": "hold", "run": effect("odd")},
    "deep": {"replay": "hold", "run": effect("deep")},
    "gone": {"replay": "hold", "run": effect("gone")},
    "exit": {"replay": "hold", "run": effect("exit")},
    "half": {"replay": "hold", "run": effect("half")},
    "slow": {"replay": "hold", "run": effect("slow")},
}
if "OWN" in os.environ:
    listed = [{"name": n, **{k: v for k, v in t.items() if not callable(v)}} for n, t in TOOLS.items() if n != "book"]
    serve(os.environ.get("AGENT", "clerk"), {n: t for n, t in TOOLS.items() if n != "book"}, run=own)
serve(os.environ.get("AGENT", "clerk"), TOOLS, model=model, system="It ends no line: \u2028.")
