"""A client of "waymark worker" with Python's standard library alone: copy it. Logs go to standard error, print() too."""
import concurrent.futures, functools, itertools, json, os, queue, sys, threading, time

_out, _lock, _ids, _mine = os.fdopen(os.dup(1), "w"), threading.Lock(), itertools.count(1), {}
os.dup2(2, 1)  # for processes that a tool starts
sys.stdout = sys.stderr  # for print()

class Stop(BaseException):
    """Leave the run: it waits, was cancelled, or has another executor. Let it pass."""
    fields = {"type": "stopped"}

class Failure(Exception):
    """A call failed. fields may be type, and in a tool or model of yours retryable, permanent (model), retry_at."""
    def __init__(self, message, **fields):
        super().__init__(message)
        self.fields = fields

def _say(line):
    with _lock:
        _out.write(json.dumps(line, allow_nan=False) + "\n")
        _out.flush()

@functools.cache
def _warn(kind): print(f"waymark: a result of type {kind} is not JSON; parts of it are recorded as text", file=sys.stderr)

def _plain(result):
    """A result as it is after a restart. What is not JSON becomes text, since the tool has had its effect."""
    try: return json.loads(json.dumps(result, allow_nan=False))
    except Exception: _warn(type(result).__name__)
    for text in (lambda: json.dumps(result, allow_nan=False, default=str), lambda: json.dumps(str(result))):
        try: return json.loads(text())
        except Exception as e: problem = e
    return f"a {type(result).__name__} without a text: {problem!r}"

def _begin(id, lines, answer=None, asked=(0.0, 0.0), **run):
    """Returns while the tool may begin: within_ms from when that was asked, by both clocks, because a machine may sleep."""
    while not answer or max(time.monotonic() - asked[0], time.time() - asked[1]) * 1000 >= answer["within_ms"]:
        asked = (time.monotonic(), time.time())
        _say({"id": id, "begin": True, **run})
        answer = lines.get()
        if not answer.get("go"):
            raise Stop(answer.get("stop") or answer.get("error") or "cancelled")

class Run:
    """A run of a program with its own loop: id, task, epoch, messages, and cancelled, an event."""
    def __init__(self, m):
        self.cancelled = m["cancelled"]
        self.id, self.task, self.epoch, self.messages = m["run"], m.get("task", ""), m.get("epoch"), m.get("messages", [])

    def _ask(self, id=None, lines=None, **request):
        id, lines = id or f"c{next(_ids)}", lines or queue.SimpleQueue()
        _mine[id] = lines
        _say({"id": id, "run": self.id, **request})
        answer = lines.get()
        if "go" not in answer:
            del _mine[id]
        if "stop" in answer:
            raise Stop(answer["stop"])
        if "error" in answer:
            raise Failure(answer["error"], type=answer.get("type", "error"))
        return answer

    def tool(self, id, name, arguments, replay, run):
        """run(arguments, call) runs once for each id, also when the run goes on elsewhere. call["key"] is the same each time."""
        mine, lines, asked = f"c{next(_ids)}", queue.SimpleQueue(), (time.monotonic(), time.time())
        call = self._ask(mine, lines, do="call", call=id, name=name, arguments=arguments, replay=replay)
        if "go" not in call:
            return call.get("result")
        call["cancelled"] = self.cancelled
        if replay in ("hold", "verify"):
            _begin(mine, lines, call, asked, run=self.id)
        try:
            result = _plain(run(arguments, call))
        except BaseException as e:
            fields = {"type": type(e).__name__, **getattr(e, "fields", {})}
            self._ask(mine, lines, error=str(e), **fields)
            raise Failure(str(e), **fields) from e  # as after a restart
        self._ask(mine, lines, result=result)
        return result

    def say(self, *messages): self._ask(do="say", messages=messages)
    def ask(self, name, question, **more): return self._ask(do="ask", name=name, question=question, **more).get("payload")
    def get(self, key): return self._ask(do="get", key=key).get("value")
    def set(self, key, value): self._ask(do="set", key=key, value=value)
    def signals(self, wait=False): return self._ask(do="signals", wait=wait).get("signals", [])
    def consume(self, *ids): self._ask(do="consume", signals=ids)

def serve(agent, tools={}, model=None, run=None, **hello):
    """Works until the worker ends. tools[name] = {"replay": …, "run": f(arguments, call), "verify": f(call)}."""
    if (model is None) == (run is None):
        raise TypeError("give serve() a model, or a run for a loop of your own")
    theirs, pool = {}, concurrent.futures.ThreadPoolExecutor(1000)
    def work(m, lines):
        try:
            if m["do"] == "model": answer = model(m)
            elif m["do"] == "verify": answer = tools[m["name"]]["verify"](m)
            elif m["do"] == "run": answer = {"output": run(Run(m))}
            else:
                if m.get("begin"): _begin(m["id"], lines)
                answer = {"result": _plain(tools[m["name"]]["run"](m.get("arguments"), m))}
        except BaseException as e: answer = {"error": f"{type(e).__name__}: {e}", **getattr(e, "fields", {})}
        theirs.pop(m["id"], None)
        try: _say({"id": m["id"], **answer})
        except Exception as e: _say({"id": m["id"], "error": f"the answer is not JSON: {e}"})
    listed = [{"name": n, **{k: v for k, v in t.items() if not callable(v)}} for n, t in tools.items()]
    _say({"hello": {"protocol": 1, "agent": agent, "tools": listed, **({"own_loop": True} if run else {}), **hello}})
    for line in sys.stdin.buffer:
        m = json.loads(line)
        if "do" in m:
            m["cancelled"], lines = threading.Event(), queue.SimpleQueue()
            theirs[m["id"]] = (m["cancelled"], lines)
            pool.submit(work, m, lines)
        elif m.get("cancel") in theirs:
            theirs[m["cancel"]][0].set()
            theirs[m["cancel"]][1].put({"stop": "cancelled"})
        elif isinstance(m.get("id"), str) and m["id"] in _mine: _mine[m["id"]].put(m)
        elif m.get("id") in theirs: theirs[m["id"]][1].put(m)
    os._exit(0)
