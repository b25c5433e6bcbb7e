#!/usr/bin/env python3
"""An executor in Python, with nothing but the standard library: it speaks the NATS protocol over a socket.

    executor.py CONTEXT start RUN TOOL [--die]    begin a run that calls TOOL (look, pay or mail)
    executor.py CONTEXT resume RUN                take a run over, and bring it to its end
    executor.py CONTEXT claim                     the same with whatever run of agent "clerk" needs an executor

CONTEXT is the file that waymark serve names. --die kills the process in the middle of the tool, as a crash does.
"""

import hashlib, json, os, socket, sys, threading, time, urllib.parse, uuid

FLEET, AGENT, EXECUTOR = "default", "clerk", "py-1"
INSTANCE = "i" + uuid.uuid4().hex[:12]  # one start of this process


class Nats:
    """As much of a NATS client as an executor needs. Yours is a better one: use it."""

    def __init__(self, context):
        url = urllib.parse.urlparse(context["url"])
        self.sock = socket.create_connection((url.hostname, url.port), timeout=30)
        self.file = self.sock.makefile("rb")
        self.lock = threading.Lock()
        self.inbox, self.waiting = "_INBOX." + uuid.uuid4().hex, []
        self.file.readline()  # INFO
        self.send(b"CONNECT " + json.dumps({
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "python", "version": "0",
            "user": context.get("user", ""), "pass": context.get("password", ""),
        }).encode() + b"\r\nSUB " + self.inbox.encode() + b" 1\r\nPING\r\n")

    def send(self, data):
        with self.lock:
            self.sock.sendall(data)

    def publish(self, subject, body, headers=None, reply=""):
        if headers is None:
            self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")
            return
        block = b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"
        self.send(f"HPUB {subject} {reply} {len(block)} {len(block) + len(body)}\r\n".encode() + block + body + b"\r\n")

    def next(self):
        """The next message to the inbox: its headers in lower case, its body, its reply subject."""
        while True:
            line = self.file.readline()
            words = line.split()
            if not words:
                raise ConnectionError("the server closed the connection")
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise PermissionError(line.decode())
            elif words[0] in (b"MSG", b"HMSG"):
                size, head = int(words[-1]), int(words[-2]) if words[0] == b"HMSG" else 0
                data = self.file.read(size + 2)[:size]
                headers = {}
                for text in data[:head].decode().split("\r\n")[1:]:
                    if ":" in text:
                        name, _, value = text.partition(":")
                        headers[name.strip().lower()] = value.strip()
                if head and data[:head].startswith(b"NATS/1.0 503"):
                    raise ConnectionError("no daemon answers: is waymark serve running?")
                replied = words[3].decode() if len(words) == (6 if head else 5) else ""
                return headers, data[head:], replied

    def request(self, subject, body, headers=None):
        """Sends a request and returns the first reply."""
        self.publish(subject, body, headers, self.inbox)
        return self.next()[:2]


# snippet: ask
def ask(nats, verb, run, request):
    """Asks the service, and returns its answer."""
    nats.publish(f"waymark.{verb}.{FLEET}" + (f".{run}" if run else ""), json.dumps(request).encode(), reply=nats.inbox)
    answer = None
    while True:
        headers, body, _ = nats.next()
        if "nats-service-error-code" in headers:
            raise RuntimeError(json.loads(body))  # {"code":…,"message":…,"hint":…}
        if headers.get("waymark-kind") == "end":
            return answer  # it is empty; a client with an inbox for each request needs the first reply alone
        answer = json.loads(body)
# end of ask


# snippet: write
def percent(text):
    """A header's value: space, quotation mark, percent sign and what is not ASCII are escaped, byte by byte."""
    return "".join(chr(b) if 0x21 <= b <= 0x7E and b not in b'"%' else f"%{b:02X}" for b in text.encode())


class Fenced(Exception):
    """Another executor has the run."""


class Run:
    """The right to write into a run: its epoch, what was written last, and where."""

    def __init__(self, nats, run, epoch=1, sequence=0, last=0, shard=None):
        self.nats, self.run, self.epoch, self.sequence, self.last = nats, run, epoch, sequence, last
        # A run begins where the server's mapping puts it, and goes on in the shard that a recovery names.
        self.subject = f"waymark.events.{FLEET}" + ("" if shard is None else f".{shard}") + f".{run}"

    def write(self, name, data, turn=None):
        """Publishes an event. When it returns, the event is durable."""
        body = json.dumps(data, ensure_ascii=False).encode()
        attributes = {
            "specversion": "1.0",
            "source": f"/waymark/{FLEET}/{EXECUTOR}",
            "type": f"io.waymark.{name}.v1",
            "subject": self.run,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "datacontenttype": "application/json",
            "epoch": str(self.epoch),
            "sequence": f"{self.sequence + 1:020d}",
        }
        if turn:
            attributes["turn"] = str(turn)
        # The content's hash: all attributes but the id, sorted, then an empty line, then the bytes of the data.
        lines = "".join(f"{k}={attributes[k]}\n" for k in sorted(attributes)) + "\n"
        content = hashlib.sha256(lines.encode() + body).digest()
        attributes["id"] = f"{self.run}.{self.epoch}.{self.sequence + 1}.{content.hex()[:8]}"
        headers = {"ce-" + k: percent(v) for k, v in attributes.items()}
        headers["Nats-Msg-Id"] = attributes["id"]
        headers["Nats-Expected-Last-Subject-Sequence"] = str(self.last)
        _, reply = self.nats.request(self.subject, body, headers)
        ack = json.loads(reply)
        if "error" in ack:
            # 10071: the run's last message is another one. A control event may stand there (read on, and write behind it), or
            # another executor has the run. This one leaves it.
            raise Fenced(ack["error"])
        self.sequence, self.last = self.sequence + 1, ack["seq"]
# end of write


POLICY = {"look": "pure", "pay": "idempotent", "mail": "hold"}


def use(tool, key):
    """The tool's effect. The key is the same each time that the same call runs."""
    print(f"{tool} {key}", flush=True)
    if "--die" in sys.argv:
        os._exit(9)  # as a crash: nothing is closed, nothing is said
    return f"{tool}: done"


def heartbeats(context):
    """Says every three seconds that this process lives, whatever else it does."""
    nats = Nats(context)
    while True:
        beat = {"executor": EXECUTOR, "instance": INSTANCE, "interval_ms": 3000}
        nats.publish(f"waymark.heartbeats.{FLEET}.{EXECUTOR}", json.dumps(beat).encode())
        time.sleep(3)


# snippet: start
def start(nats, run, tool):
    """Begins a run: a turn in which the model asks for one call."""
    r = Run(nats, run)
    r.write("run.started", {"agent": AGENT, "executor": EXECUTOR, "instance": INSTANCE, "task": "100 % of it"})
    r.write("turn.started", {"turn": 1, "messages": [{"role": "user", "parts": [{"type": "text", "content": "Grüße: " + tool}]}]}, 1)
    # What the model answered is recorded before it is acted on, with the calls that it asks for.
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "I do."}, {"type": "tool_call", "id": "c1", "name": tool}]}
    call = {"tool_call_id": "c1", "name": tool, "arguments": {}, "replay": POLICY[tool]}
    r.write("turn.answered", {"turn": 1, "message": answer, "calls": [call]}, 1)
    finish(r, tool)


def finish(r, tool, turn=1, call="c1", occurrence=1):
    if POLICY[tool] == "hold":
        r.write("tool.called", {"tool_call_id": call, "name": tool}, turn)  # it begins: from here on it may have had its effect
    result = use(tool, f"{r.run}.{turn}.{call}.{occurrence}")
    r.write("tool.returned", {"tool_call_id": call, "result": result}, turn)
    end(r)


def end(r):
    r.write("run.ended", {"status": "completed"})
# end of start


# snippet: resume
def resume(nats, run, reason="request", request_id=None):
    """Takes a run over, and goes on where its record ends."""
    request = {"executor": EXECUTOR, "instance": INSTANCE, "agent": AGENT, "reason": reason,
               "request_id": request_id or uuid.uuid4().hex}
    answer = ask(nats, "recover", run, request)
    head, state = answer["head"], answer["state"]  # where it stands; the conversation, with arguments and results in place
    r = Run(nats, run, answer["epoch"], answer["next_sequence"] - 1, answer["last_stream_sequence"], answer["shard"])
    for call in head.get("open_calls", []):
        turn, id, name = call["turn"], call["tool_call_id"], call["name"]
        if not call.get("in_doubt"):
            pass  # requested by the answer, or by an operator's settlement, and not begun yet
        elif call.get("late_result"):
            r.write("tool.settled", {"tool_call_id": id, "how": "adopted"}, turn)
            return end(r)
        elif call["replay"] in ("pure", "idempotent"):
            r.write("tool.settled", {"tool_call_id": id, "how": "rerun"}, turn)
        else:
            # Its effect is unknown: a person decides, and the run needs no executor meanwhile.
            r.write("run.waiting", {"interrupt_id": "doubt." + id, "reason": "tool_in_doubt", "tool_call_id": id,
                                    "message": f"did {name} have its effect?"}, turn)
            r.write("run.interrupted", {"reason": "waiting"})
            print(f"waits {run}")
            return
        return finish(r, name, turn, id, call["occurrence"])
    print(f"nothing is open in {run}: {len(state['messages'])} messages are recorded")
    r.write("run.ended", {"status": "completed"})
# end of resume


# snippet: claim
def claim(nats):
    """Asks for a run that needs an executor. A request that was not answered is repeated with its request_id."""
    request_id = uuid.uuid4().hex
    answer = ask(nats, "claim", "", {"executor": EXECUTOR, "instance": INSTANCE, "request_id": request_id, "agents": [AGENT]})
    if answer.get("run"):
        resume(nats, answer["run"], "claim", request_id)
    else:
        print("nothing to claim")
# end of claim


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        context = json.load(file)
    threading.Thread(target=heartbeats, args=(context,), daemon=True).start()
    nats = Nats(context)
    words = [w for w in sys.argv[2:] if w != "--die"]
    {"start": start, "resume": resume, "claim": claim}[words[0]](nats, *words[1:])


if __name__ == "__main__":
    main()
