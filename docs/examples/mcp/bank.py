import json, sys, time

for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bank", "version": "1"}}
    elif m["method"] == "tools/list":
        result = {"tools": [{"name": "charge", "inputSchema": {"type": "object"}}]}
    elif m["method"] == "tools/call":
        with open("charged.txt", "a") as f:
            print("charged", m["params"]["arguments"]["to"], file=f)
        print("charging", file=sys.stderr, flush=True)
        time.sleep(5)
        result = {"content": [{"type": "text", "text": "charged"}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
