# snippet: plain
nats pub waymark.events.default.run-1 -H ce-specversion:1.0 -H ce-id:1 -H ce-source:/waymark/default/py-1 -H ce-type:io.waymark.run.started.v1 -H ce-subject:run-1 -H ce-epoch:1 '{"agent":"coder","executor":"py-1","instance":"s1"}'
nats pub waymark.heartbeats.default.py-1 '{"executor":"py-1","instance":"s1","interval_ms":3000}'
nats pub waymark.events.default.run-1 -H ce-specversion:1.0 -H ce-id:2 -H ce-source:/waymark/default/py-1 -H ce-type:io.waymark.turn.started.v1 -H ce-subject:run-1 -H ce-epoch:1 '{"turn":1,"messages":[{"role":"user","parts":[{"type":"text","content":"Write to Ann."}]}]}'
nats pub waymark.events.default.run-1 -H ce-specversion:1.0 -H ce-id:3 -H ce-source:/waymark/default/py-1 -H ce-type:io.waymark.tool.called.v1 -H ce-subject:run-1 -H ce-epoch:1 -H ce-turn:1 '{"tool_call_id":"c1","name":"mail"}'
# end of plain

# snippet: ask
nats req --raw waymark.get.default.run-1 '{}'
nats req --raw waymark.get.default.run-1 '{"view":"head"}'
nats req --raw waymark.get.default.run-1 '{"at":"turn:0"}'
nats req --raw waymark.recover.default.run-1 '{"executor":"py-2","instance":"s1","request_id":"take-1"}'
# end of ask
