package access

import (
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Role is what somebody does in a fleet.
type Role string

// Roles.
const (
	// Executor drives runs: it publishes events, claims, recovers, and reads what it recovers.
	Executor Role = "executor"
	// Observer reads runs and sees what happens. It changes nothing.
	Observer Role = "observer"
	// Operator does all that observers and executors may, and decides what people decide.
	Operator Role = "operator"
	// Daemon folds, answers, and makes the fleet's streams and buckets. It is the only one in their account.
	Daemon Role = "daemon"
)

// Roles are all of them, the least powerful first.
func Roles() []Role { return append(ClientRoles(), Daemon) }

// ClientRoles are the roles that ask the daemon, the least powerful first.
func ClientRoles() []Role { return []Role{Observer, Executor, Operator} }

// APIPrefix is where the requests of a client's account to JetStream's API are mapped to.
const APIPrefix = "$JS.waymark.API."

// refusedPrefix is where what a client may not publish is mapped to, with what answers it: no role is permitted it and nothing listens. A
// permission that denies holds for a client's own messages only, a mapping for the answers that enter its account, too.
const refusedPrefix = "waymark.refused."

// ObserverConsumer is the durable consumer of a shard's events that observers may read from, if it was made.
const ObserverConsumer = "observer"

// AccountOf is the account of a role in a fleet. That of the [Daemon] has the fleet's streams and buckets.
func AccountOf(role Role, fleet string) string {
	if role == Daemon {
		return "WAYMARK_" + fleet
	}
	return "FLEET_" + fleet + "_" + string(role)
}

// InboxPrefix begins the subjects on which a role is answered. The client must be told of it: nats.CustomInboxPrefix.
func InboxPrefix(role Role) string { return schema.InboxPrefix + "_" + string(role) }

// kind is how something crosses from one account to the other.
type kind int

const (
	// service is published by clients and answered at most once.
	service kind = iota
	// streaming is published by clients and may be answered many times.
	streaming
	// stream is published by the daemon, or the server, and heard by clients.
	stream
)

// grant is one thing that clients may do.
type grant struct {
	subject string
	kind    kind
	// api: the subject is one of JetStream's API.
	api bool
	// proven: the server tells the daemon the sender.
	proven bool
	roles  []Role
}

// Verbs of the daemon's service, by who may use them.
var (
	// readingVerbs change nothing.
	readingVerbs = []string{schema.VerbGet, schema.VerbList, schema.VerbHistory, schema.VerbFleet, schema.VerbExecutors}
	// workingVerbs are what an executor needs: for its own runs, those it claims, those it started, and those that its agents talk to.
	workingVerbs = []string{schema.VerbRecover, schema.VerbClaim, schema.VerbHandoff, schema.VerbCancel, schema.VerbSignal}
	// decidingVerbs are a person's word: an executor that had them could approve its own calls.
	decidingVerbs = []string{schema.VerbInput, schema.VerbSettle, schema.VerbMark, schema.VerbErase, schema.VerbCleanup, schema.VerbRetry}
)

// grants lists what clients of a fleet may do. It is the one list: rights, imports and exports are made of it.
func grants(fleet string, shards int) []grant {
	var list []grant
	add := func(kind kind, subject string, roles ...Role) {
		list = append(list, grant{subject: subject, kind: kind, roles: roles})
	}
	api := func(kind kind, subject string, roles ...Role) {
		list = append(list, grant{subject: subject, kind: kind, api: true, roles: roles})
	}
	verbs := func(verbs []string, proven bool) {
		for _, verb := range verbs {
			// Those of the whole fleet end with its name, those of a run with the run.
			for _, run := range []string{"", "*"} {
				list = append(list, grant{subject: schema.ServiceSubject(verb, fleet, run), kind: streaming, proven: proven, roles: verbRoles(verb)})
			}
		}
	}
	verbs(readingVerbs, false)
	verbs(workingVerbs, true)
	verbs(decidingVerbs, true)
	add(service, schema.HeartbeatSubject(fleet, "*"), Executor, Operator)

	add(service, schema.AgentHeartbeats, Executor, Operator)

	add(stream, schema.SettingsSubject(fleet), Observer, Executor, Operator)
	add(stream, schema.NoticeSubject(fleet, "*"), Executor, Operator)
	add(stream, schema.ObservedSubject(fleet, "*.*", "*"), Observer, Operator)
	add(stream, "waymark.checkpoints."+fleet+".*.*", Observer, Operator) // of all shards, those to come included

	api(service, "STREAM.MSG.GET.KV_"+schema.FleetBucket, Observer, Executor, Operator)
	// doctor looks at every stream and at the account.
	api(service, "INFO", Observer, Operator)
	for _, name := range []string{"KV_" + schema.FleetBucket, "KV_" + schema.LeaseBucket, schema.DeadLetterStream(fleet)} {
		api(service, "STREAM.INFO."+name, Observer, Operator)
	}
	api(service, "STREAM.MSG.GET.KV_"+schema.LeaseBucket, Observer, Operator) // when the last backup was, and who folds
	api(service, "STREAM.MSG.GET."+schema.DeadLetterStream(fleet), Operator)
	api(streaming, "DIRECT.GET."+schema.DeadLetterStream(fleet), Operator)
	for i := range shards {
		n := schema.NamesOf(fleet, i)
		add(service, n.EventSubjects(), Executor, Operator)
		api(service, "STREAM.INFO."+n.EventStream(), Observer, Executor, Operator)
		api(service, "STREAM.MSG.GET."+n.EventStream(), Observer, Executor, Operator)
		api(streaming, "DIRECT.GET."+n.EventStream(), Observer, Executor, Operator)
		// A durable consumer that the daemon's key, or NACK, made for observers that must miss nothing.
		api(service, "CONSUMER.INFO."+n.EventStream()+"."+ObserverConsumer, Observer, Operator)
		api(streaming, "CONSUMER.MSG.NEXT."+n.EventStream()+"."+ObserverConsumer, Observer, Operator)
		add(service, "$JS.ACK."+n.EventStream()+"."+ObserverConsumer+".>", Observer, Operator)
		// verify compares all that is stored of a run with its events.
		for _, bucket := range []string{n.SegmentBucket(), n.CheckpointBucket()} {
			api(service, "STREAM.INFO.KV_"+bucket, Observer, Operator)
			api(service, "STREAM.MSG.GET.KV_"+bucket, Observer, Operator)
			api(service, "DIRECT.GET.KV_"+bucket+".$KV."+bucket+".>", Observer, Operator)
			api(streaming, "DIRECT.GET.KV_"+bucket, Observer, Operator)
		}
	}
	blobs := schema.BlobBucket(fleet)
	add(service, "$O."+blobs+".C.*", Executor, Operator)
	add(service, "$O."+blobs+".M.*", Executor, Operator)
	api(service, "STREAM.INFO.OBJ_"+blobs, Observer, Executor, Operator)
	api(service, "DIRECT.GET.OBJ_"+blobs+".$O."+blobs+".M.*", Observer, Executor, Operator)
	api(streaming, "DIRECT.GET.OBJ_"+blobs, Observer, Executor, Operator)
	// "nats micro ls" of an operator.
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		add(streaming, "$SRV."+verb, Operator)
		add(streaming, "$SRV."+verb+".waymark", Operator)
	}
	return list
}

// grants are those of the fleet. With separate duties, operators lose an executor's rights: to start or take over a run, to publish an event
// such as a question, to store a blob. Cancel stays: it asks for nothing that needs an approval.
func (a Account) grants() []grant {
	list := grants(a.Fleet, a.Shards)
	if !a.SeparateDuties {
		return list
	}
	for i := range list {
		g := &list[i]
		asks := slices.Contains(g.roles, Executor) && !slices.Contains(g.roles, Observer)
		if asks && !strings.HasPrefix(g.subject, schema.ServiceSubject(schema.VerbCancel, a.Fleet, "")) {
			g.roles = slices.DeleteFunc(slices.Clone(g.roles), func(r Role) bool { return r == Operator })
		}
	}
	return list
}

// Rights are the permissions of a user, as the server's configuration has them.
type Rights struct {
	// Publish and Subscribe are what is allowed; all else is refused, and logged by the server.
	Publish, Subscribe []string
}

// RightsOf returns the rights of a role in a fleet of so many shards. More shards than there are do no harm.
func RightsOf(role Role, fleet string, shards int) Rights {
	return Account{Fleet: fleet, Shards: shards}.Rights(role)
}

// Rights returns the rights of a role.
func (a Account) Rights(role Role) Rights {
	if role == Daemon {
		return daemonRights(a.Fleet, a.Shards)
	}
	// _R_ is where the server takes what is said to a long answer: go on. In a client's account nothing else is behind it; and
	// allow_responses, which is meant for that, refused some of it on a cluster.
	r := Rights{Subscribe: []string{InboxPrefix(role) + ".>"}, Publish: []string{"_R_.>"}}
	for _, g := range a.grants() {
		switch {
		case !slices.Contains(g.roles, role):
		case g.kind == stream:
			r.Subscribe = append(r.Subscribe, g.subject)
		case g.api:
			r.Publish = append(r.Publish, APIPrefix+g.subject)
		default:
			r.Publish = append(r.Publish, g.subject)
		}
	}
	return r
}

// mappings are those of a client's account. JetStream's requests go where they are imported; and the barrier's subject, which the import of
// all runs covers, goes nowhere: a forged barrier could pass a stale answer off as whole.
func mappings(fleet string, shards int) [][2]string {
	list := [][2]string{{serverAPI + ">", APIPrefix + ">"}}
	for i := range shards {
		barrier := schema.NamesOf(fleet, i).EventSubject(schema.BarrierRun)
		list = append(list, [2]string{barrier, refusedPrefix + strings.TrimPrefix(barrier, "waymark.")})
	}
	return list
}

// serverAPI is the prefix of JetStream's API.
const serverAPI = "$JS.API."

// daemonRights lists what the daemon does on the streams of its fleet. It can do nothing to another stream.
func daemonRights(fleet string, shards int) Rights {
	r := Rights{
		Publish: []string{
			"_R_.>", InboxPrefix(Daemon) + ".>", // answers, to clients and to who shares its key
			schema.SettingsSubject(fleet), schema.ReplicaSubject(fleet), schema.NoticeSubject(fleet, "*"),
			schema.ObservedSubject(fleet, "*.*", "*"), serverAPI + "INFO", // its account's own
			infoSubject,
		},
		Subscribe: []string{
			InboxPrefix(Daemon) + ".>", "$SRV.>",
			schema.SettingsSubject(fleet), schema.ReplicaSubject(fleet), schema.HeartbeatSubject(fleet, "*"), schema.AgentHeartbeats,
		},
	}
	for _, verb := range slices.Concat(readingVerbs, workingVerbs, decidingVerbs) {
		for _, run := range []string{"", "*"} {
			r.Subscribe = append(r.Subscribe, schema.ServiceSubject(verb, fleet, run))
			if !schema.Changes(verb) {
				r.Publish = append(r.Publish, schema.ServiceSubject(verb, fleet, run)) // for who shares its key: fleet add, shards set
			}
		}
	}
	own := func(stream string, derived bool, subjects ...string) {
		r.Publish = append(r.Publish, subjects...)
		for _, verb := range []string{"CREATE", "INFO", "UPDATE", "PURGE", "MSG.GET"} {
			r.Publish = append(r.Publish, serverAPI+"STREAM."+verb+"."+stream)
		}
		if derived {
			r.Publish = append(r.Publish, serverAPI+"STREAM.DELETE."+stream)
		}
		r.Publish = append(r.Publish,
			serverAPI+"DIRECT.GET."+stream, serverAPI+"DIRECT.GET."+stream+".>",
			serverAPI+"CONSUMER.CREATE."+stream, serverAPI+"CONSUMER.CREATE."+stream+".>",
			serverAPI+"CONSUMER.INFO."+stream+".*", serverAPI+"CONSUMER.DELETE."+stream+".*",
			serverAPI+"CONSUMER.MSG.NEXT."+stream+".*", "$JS.FC."+stream+".>",
		)
	}
	// A backup reads whole streams, and a restore makes those that are not there: who may read and create them can do both already.
	saved := func(stream string) {
		r.Publish = append(r.Publish,
			serverAPI+"STREAM.SNAPSHOT."+stream, "$JS.SNAPSHOT.ACK."+stream+".>",
			serverAPI+"STREAM.RESTORE."+stream, "$JS.SNAPSHOT.RESTORE."+stream+".*",
		)
	}
	bucket := func(name string, derived bool) { own("KV_"+name, derived, "$KV."+name+".>") }
	bucket(schema.FleetBucket, false)
	bucket(schema.LeaseBucket, false)
	for i := range shards {
		n := schema.NamesOf(fleet, i)
		own(n.EventStream(), false, n.EventSubjects())
		bucket(n.SegmentBucket(), false)
		bucket(n.CheckpointBucket(), true)
		saved(n.EventStream())
		saved("KV_" + n.SegmentBucket())
	}
	blobs := schema.BlobBucket(fleet)
	own("OBJ_"+blobs, false, "$O."+blobs+".C.*", "$O."+blobs+".M.*")
	own(schema.DeadLetterStream(fleet), false, schema.DeadLetterSubjects(fleet))
	saved("OBJ_" + blobs)
	saved(schema.DeadLetterStream(fleet))
	return r
}

// streams is the number of streams of a fleet.
func streams(shards int) int { return 3*shards + 4 }

// shardsText is the number of shards for people.
func shardsText(n int) string {
	if n == 1 {
		return "one shard"
	}
	return strconv.Itoa(n) + " shards"
}

// MayPublish are the roles of a fleet that may publish to a subject of it, the least powerful first; none for a subject that names no fleet.
func MayPublish(subject string) []Role {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 3 || tokens[0] != "waymark" {
		return nil
	}
	var roles []Role
	for _, role := range Roles() {
		if slices.ContainsFunc(RightsOf(role, tokens[2], 1).Publish, func(filter string) bool { return covers(filter, tokens) }) {
			roles = append(roles, role)
		}
	}
	return roles
}

// covers reports whether a subject with wildcards has the subject of these tokens.
func covers(filter string, tokens []string) bool {
	filters := strings.Split(filter, ".")
	for i, f := range filters {
		switch {
		case i >= len(tokens):
			return false
		case f == ">":
			return true
		case f != "*" && f != tokens[i]:
			return false
		}
	}
	return len(filters) == len(tokens)
}
