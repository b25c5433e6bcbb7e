package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// asyncAPI is the AsyncAPI 3.0 document of Waymark's wire format, from the daemon's point of view: it
// receives events, heartbeats and requests, and sends checkpoints, observed events, dead letters, notices and replies.
func (b *builder) asyncAPI() object {
	schemas := object{}
	for name, def := range b.defs {
		schemas[name] = relocated(def)
	}
	messages, anyEvent := b.eventMessages()
	channels, operations := object{}, object{}
	names := schema.NamesOf("{fleet}", 0)
	sharded := func(subject string) string { return strings.Replace(subject, "{fleet}.0.", "{fleet}.{shard}.", 1) }

	channels["events"] = channel(sharded(names.EventSubject("{run}")),
		"The log of a run. JetStream stream "+strings.Replace(names.EventStream(), "_0", "_{shard}", 1)+
			" captures it; a publish carries Nats-Expected-Last-Subject-Sequence, and its PubAck makes the event durable.", anyEvent)
	operations["receiveEvent"] = operation("receive", "events", "Executors, the daemon and operators publish events of a run.")

	messages["checkpoint"] = message("Checkpoint", "A run's checkpoint as stored, republished by the bucket. It is a hint and may be lost.",
		headers(object{"ce-type": object{"type": "string", "enum": []string{
			schema.TypeOf(schema.CheckpointCreated), schema.TypeOf(schema.CheckpointUpdated), schema.TypeOf(schema.CheckpointFinalized),
		}}}), schemaRef("Checkpoint"))
	channels["checkpoints"] = channel(sharded(names.CheckpointSubject("{run}")),
		"Each checkpoint of a run, as it is put into the bucket "+strings.Replace(names.CheckpointBucket(), "_0", "_{shard}", 1)+".", []string{"checkpoint"})
	operations["sendCheckpoint"] = operation("send", "checkpoints", "Each checkpoint that is put.")

	turns := make([]string, 0, len(schema.TurnNotices()))
	for _, name := range schema.TurnNotices() {
		turns = append(turns, strings.ReplaceAll(name, ".", "_"))
		messages[turns[len(turns)-1]] = message(name, "A turn's life changed with an event. Derived by the daemon: it is in no log, and comes behind that event.",
			headers(object{"ce-type": object{"type": "string", "const": schema.TypeOf(name)}}), schemaRef("TurnData"))
	}
	channels["observed"] = channel(schema.ObservedSubject("{fleet}", "{entity}.{verb}", "{run}"),
		"Each event once it was accepted, and what it changed of turns, in order. One may be lost, and may come again with the same id. A program that must not miss any consumes the event stream.",
		slices.Concat(anyEvent, turns))
	operations["sendObserved"] = operation("send", "observed", "Each accepted event. A call of an answer is told with the answer, as tool.called; its begin is not told. "+
		"The life of a turn is told as turn.created, turn.updated and turn.finalized.")

	messages["deadLetter"] = message("Dead letter", "A message that the fold refused, whole and as it came; the subject says why.",
		object{"type": "object"}, object{})
	channels["deadletters"] = channel(schema.DeadLetterSubject("{fleet}", "{reason}", "_"),
		"What the fold refused. JetStream stream "+schema.DeadLetterStream("{fleet}")+".", []string{"deadLetter"})
	deadletters, _ := channels["deadletters"].(object)
	deadletters["address"] = strings.TrimSuffix(schema.DeadLetterSubject("{fleet}", "{reason}", "_"), "_") + "{run}"
	deadletters["parameters"] = parameters("fleet", "reason", "run")
	operations["sendDeadLetter"] = operation("send", "deadletters", "Each refused message.")

	messages["heartbeat"] = message("Heartbeat", "A sign of life of an executor, for all of its runs.", object{"type": "object"}, schemaRef("Heartbeat"))
	channels["heartbeats"] = channel(schema.HeartbeatSubject("{fleet}", "{executor}"),
		"Executors send a heartbeat every few seconds, over core NATS. The runs of an executor that is silent for longer go to other executors.", []string{"heartbeat"})
	operations["receiveHeartbeat"] = operation("receive", "heartbeats", "Executors publish one for all of their runs.")

	messages["notice"] = message("Notice", "Another client wrote into a run that the executor has or had. It is a hint and may be lost or repeated.",
		object{"type": "object"}, schemaRef("Notice"))
	channels["notices"] = channel(schema.NoticeSubject("{fleet}", "{executor}"),
		"Tells an executor to read a run at once, over core NATS. An executor that misses a notice learns of the write at its next publish.", []string{"notice"})
	operations["sendNotice"] = operation("send", "notices", "Each control event in a run of the executor.")

	b.services(channels, operations, messages)
	return object{
		"asyncapi": "3.0.0",
		"info": object{
			"title":       "Waymark",
			"version":     "1",
			"description": "Events, checkpoints and the recovery service of Waymark. Generated from the Go types of package schema.",
			"license":     object{"name": "Apache-2.0"},
			"tags":        []any{object{"name": "agents"}, object{"name": "nats"}, object{"name": "cloudevents"}},
		},
		"id":                 "urn:waymark:asyncapi",
		"defaultContentType": schema.ContentTypeJSON,
		"servers": object{"nats": object{
			"host": "127.0.0.1:4222", "protocol": "nats", "description": "NATS 2.14 or newer with JetStream.",
			"tags": []any{object{"name": "local"}},
		}},
		"channels":   channels,
		"operations": operations,
		"components": object{"messages": messages, "schemas": schemas},
	}
}

// eventMessages are the messages of the vocabulary, and one for other types.
func (b *builder) eventMessages() (messages object, names []string) {
	messages = object{}
	for _, event := range b.events {
		name := strings.ReplaceAll(event, ".", "_")
		root := b.documentOf(event)
		description, _ := b.defs[root]["description"].(string)
		m := message(event, description, headers(object{
			"ce-type": object{"type": "string", "const": schema.TypeOf(event)},
		}), schemaRef(root))
		messages[name] = m
		names = append(names, name)
	}
	messages["foreign"] = message("An event of another type", "Stored and shown, never rejected.", headers(nil), object{})
	return messages, append(names, "foreign")
}

func (b *builder) documentOf(event string) string {
	for _, d := range b.documents() {
		if d.file == event {
			return d.root.Name()
		}
	}
	return ""
}

// services adds the verbs of the recovery service.
func (b *builder) services(channels, operations, messages object) {
	messages["serviceError"] = message("Error", "The answer to a request that failed.", object{
		"type": "object", "required": []string{schema.HeaderError, schema.HeaderErrorCode},
		"properties": object{
			schema.HeaderError:     object{"type": "string", "description": "The error in words."},
			schema.HeaderErrorCode: object{"type": "string", "pattern": "^[45][0-9]{2}$", "description": "As an HTTP status."},
		},
	}, schemaRef("ServiceError"))
	numbered := func(kinds ...string) object {
		return object{
			"type": "object", "required": []string{schema.HeaderKind, schema.HeaderReply},
			"properties": object{
				schema.HeaderReply: object{"type": "string", "pattern": "^[1-9][0-9]*$", "description": "Numbers the replies to one request from 1."},
				schema.HeaderKind:  object{"type": "string", "enum": kinds, "description": "What the body is."},
			},
		}
	}
	content := message("Content", "A piece of the view events: a segment as stored, or frames of the tail. It is acknowledged at its reply subject with an empty message.",
		numbered(schema.KindSegment, schema.KindFrames), object{})
	content["contentType"] = "application/octet-stream"
	end := message("End", "The last reply. It is empty.", numbered(schema.KindEnd), object{})
	end["contentType"] = "application/octet-stream"
	part := message("Part", "The next part of an answer that is larger than a message. It is not acknowledged.", numbered(schema.KindPart), object{})
	messages["content"], messages["part"], messages["end"] = content, part, end

	for _, s := range []struct {
		verb, run, request, reply string
		streams                   bool
		what                      string
	}{
		{schema.VerbRecover, "{run}", "RecoverRequest", "RecoverReply", true, "Takes a run over: barrier, new epoch, state."},
		{schema.VerbGet, "{run}", "GetRequest", "GetReply", true, "Reads a run without taking it over."},
		{schema.VerbList, "", "ListRequest", "ListReply", false, "Lists runs."},
		{schema.VerbHistory, "{run}", "", "HistoryReply", false, "Lists the checkpoints kept of a run."},
		{schema.VerbRecords, "{run}", "RecordsRequest", "RecordsReply", false, "Reads a page of a run's records, by their numbers."},
		{schema.VerbSettle, "{run}", "SettleRequest", "SettleReply", false, "Settles a call in doubt by an operator's word."},
		{schema.VerbClaim, "", "ClaimRequest", "ClaimReply", false, "Hands a claimable run to the executor that asks: one of its own first, then the one that waits for longest."},
		{schema.VerbInput, "{run}", "InputRequest", "ControlReply", false, "Answers something that a run waits for, as its response_schema asks."},
		{schema.VerbCancel, "{run}", "CancelRequest", "ControlReply", false, "Asks a run's executor to stop; once is enough."},
		{schema.VerbHandoff, "{run}", "HandoffRequest", "ControlReply", false, "Accepts, declines or closes a hand-off."},
		{schema.VerbMark, "{run}", "MarkRequest", "ControlReply", false, "Pins the point where a run stands under a name."},
		{schema.VerbSignal, "{run}", "SignalRequest", "ControlReply", false, "Sends a message into a run that has not ended."},
		{schema.VerbErase, "{run}", "EraseRequest", "EraseReply", false, "Removes a run permanently, or reports what is left of a removed run. Ask again until it is done."},
		{schema.VerbCleanup, "", "CleanupRequest", "CleanupReply", false, "Removes the runs that a policy does not keep, a page at a time, or shows which those are."},
		{schema.VerbExecutors, "", "ExecutorsRequest", "ExecutorsReply", false, "Lists the executors of a fleet, how long ago each was heard, and when its runs are orphaned."},
		{schema.VerbFleet, "", "FleetRequest", "FleetReply", false, "Returns the state of the fleet: folded, stored and waiting events."},
	} {
		request, reply := s.verb+"Request", s.verb+"Reply"
		payload := object{}
		if s.request != "" {
			payload = schemaRef(s.request)
		}
		messages[request] = message(request, s.what, object{"type": "object"}, payload)
		replyHeaders := object{"type": "object"}
		replies := []string{reply, "serviceError"}
		if s.streams {
			replyHeaders = numbered(schema.KindAnswer)
			replies = append(replies, "content", "part", "end")
		}
		messages[reply] = message(reply, "The answer.", replyHeaders, schemaRef(s.reply))
		channels[s.verb] = channel(schema.ServiceSubject(s.verb, "{fleet}", s.run), s.what, []string{request})
		replyChannel := channel("", "Replies, on the request's reply subject.", replies)
		replyChannel["address"] = nil
		channels[reply] = replyChannel
		o := operation("receive", s.verb, s.what)
		o["reply"] = object{"channel": object{"$ref": "#/channels/" + reply}}
		operations[s.verb] = o
	}
}

func schemaRef(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func message(title, summary string, headers, payload object) object {
	return object{"name": title, "title": title, "summary": summary, "headers": headers, "payload": payload, "contentType": schema.ContentTypeJSON}
}

// headers are those of a CloudEvent in binary mode.
func headers(more object) object {
	text := func(description string) object { return object{"type": "string", "description": description} }
	integer := func(description string) object {
		return object{"type": "string", "pattern": "^[0-9]{1,10}$", "description": description}
	}
	properties := object{
		"ce-specversion":     object{"type": "string", "const": schema.SpecVersion},
		"ce-id":              object{"type": "string", "minLength": 1, "maxLength": schema.MaxIdentifier, "description": "<run>.<epoch>.<sequence>.<8 hex> from an SDK, <run>.<epoch>.c.<nonce> of a control event; the Nats-Msg-Id too."},
		"ce-source":          text("/waymark/<fleet>/<executor> from an SDK."),
		"ce-type":            text("io.waymark.<name>.v1, or a type of another vocabulary."),
		"ce-subject":         text("The run id."),
		"ce-time":            object{"type": "string", "format": "date-time"},
		"ce-epoch":           integer("Fencing number of the run, from 1."),
		"ce-sequence":        object{"type": "string", "pattern": "^[0-9]{1,20}$", "description": "The executor's dense counter within the epoch, 20 digits."},
		"ce-turn":            integer("The turn the event belongs to."),
		"ce-traceparent":     text("W3C trace context."),
		"ce-dataref":         object{"type": "string", "pattern": refPattern, "description": "The blob of the data's large field."},
		"ce-datacontenttype": text("application/json for all of Waymark's own events."),
	}
	maps.Copy(properties, more)
	return object{
		"type": "object", "properties": properties, "required": []string{"ce-id", "ce-source", "ce-specversion", "ce-type"},
		"description": "CloudEvents 1.0, binary mode. Values are percent-encoded as in the CloudEvents HTTP binding.",
	}
}

func channel(address, description string, messages []string) object {
	refs := object{}
	for _, name := range messages {
		refs[name] = object{"$ref": "#/components/messages/" + name}
	}
	c := object{"address": address, "description": description, "messages": refs}
	var names []string
	for part := range strings.SplitSeq(address, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		c["parameters"] = parameters(names...)
	}
	return c
}

func parameters(names ...string) object {
	all := object{
		"fleet":    object{"description": "Fleet name."},
		"shard":    object{"description": "Shard number, from 0: FNV-1a-32 of the run id modulo the number of shards."},
		"run":      object{"description": "Run id."},
		"executor": object{"description": "Name of the executor."},
		"entity":   object{"description": "First token of the event's name, such as tool."},
		"verb":     object{"description": "Second token of the event's name, such as called."},
		"reason":   object{"description": "Why the message was refused.", "enum": reasons()},
	}
	out := object{}
	for name, p := range all {
		if slices.Contains(names, name) {
			out[name] = p
		}
	}
	return out
}

func reasons() []string {
	var out []string
	for _, r := range schema.Reasons() {
		out = append(out, string(r))
	}
	return out
}

func operation(action, channel, summary string) object {
	return object{"action": action, "channel": object{"$ref": "#/channels/" + channel}, "summary": summary}
}

// relocated is a definition whose references point into the components of an AsyncAPI document.
func relocated(v any) any {
	switch v := v.(type) {
	case object:
		c := make(object, len(v))
		for k, m := range v {
			if ref, ok := m.(string); ok && k == "$ref" {
				m = strings.Replace(ref, "#/$defs/", "#/components/schemas/", 1)
			}
			c[k] = relocated(m)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, m := range v {
			c[i] = relocated(m)
		}
		return c
	}
	return v
}
