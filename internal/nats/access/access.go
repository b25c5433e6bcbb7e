package access

import (
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Role is the role of a client in a fleet.
type Role string

// Roles.
const (
	// Executor drives runs: it publishes events, claims, recovers, and reads recovered runs.
	Executor Role = "executor"
	// Observer reads runs and their changes. It changes nothing.
	Observer Role = "observer"
	// Operator may do everything that observers and executors may, and makes the decisions of people.
	Operator Role = "operator"
	// Daemon folds, answers, and creates the fleet's streams and buckets. It is the only role in their account.
	Daemon Role = "daemon"
)

// Roles are all of them, the least powerful first.
func Roles() []Role { return append(ClientRoles(), Daemon) }

// ClientRoles are the roles that send requests to the daemon, the least powerful first.
func ClientRoles() []Role { return []Role{Observer, Executor, Operator} }

// APIPrefix is the target of the mapping of a client account's requests to JetStream's API.
const APIPrefix = "$JS.waymark.API."

// refusedPrefix is the target of the mapping of subjects that a client may not publish to, including answers to it:
// no role is permitted it and nothing listens. A deny permission only covers a client's own messages; a mapping also
// covers answers that enter its account.
const refusedPrefix = "waymark.refused."

// ObserverConsumer is the durable consumer of a shard's events that observers may read from, if it exists.
const ObserverConsumer = "observer"

// AccountOf is the account of a role in a fleet. That of the [Daemon] has the fleet's streams and buckets.
func AccountOf(role Role, fleet string) string {
	if role == Daemon {
		return "WAYMARK_" + fleet
	}
	return "FLEET_" + fleet + "_" + string(role)
}

// InboxPrefix begins the subjects of answers to a role. The client must set it: nats.CustomInboxPrefix.
func InboxPrefix(role Role) string { return schema.InboxPrefix + "_" + string(role) }

// kind is how messages cross from one account to the other.
type kind int

const (
	// service is published by clients and answered at most once.
	service kind = iota
	// streaming is published by clients and may be answered many times.
	streaming
	// stream is published by the daemon, or the server, and received by clients.
	stream
)

// grant is one permission of clients.
type grant struct {
	subject string
	kind    kind
	// api: the subject is one of JetStream's API.
	api bool
	// verb: a verb of the daemon's service, to which the server names the sender.
	verb  bool
	roles []Role
}

// Verbs of the daemon's service, by the roles that may use them.
var (
	// readingVerbs change nothing.
	readingVerbs = []string{schema.VerbGet, schema.VerbList, schema.VerbHistory, schema.VerbRecords, schema.VerbFleet, schema.VerbExecutors}
	// workingVerbs are what an executor needs: for its own runs, those it claims, those it started, and those that
	// its agents communicate with. A schedule starts runs: the roles that may start runs may set one.
	workingVerbs = []string{schema.VerbRecover, schema.VerbClaim, schema.VerbHandoff, schema.VerbCancel, schema.VerbSignal, schema.VerbFork, schema.VerbSchedule}
	// decidingVerbs are decisions of people: an executor with them could approve its own calls.
	decidingVerbs = []string{schema.VerbInput, schema.VerbSettle, schema.VerbMark, schema.VerbErase, schema.VerbCleanup, schema.VerbPause, schema.VerbLimit}
)

// grants lists the permissions of a fleet's clients. It is the only list: rights, imports and exports are made from
// it.
func grants(fleet string, shards int) []grant {
	var list []grant
	add := func(kind kind, subject string, roles ...Role) {
		list = append(list, grant{subject: subject, kind: kind, roles: roles})
	}
	api := func(kind kind, subject string, roles ...Role) {
		list = append(list, grant{subject: subject, kind: kind, api: true, roles: roles})
	}
	for _, verb := range slices.Concat(readingVerbs, workingVerbs, decidingVerbs) {
		// Subjects of the whole fleet end with its name, those of a run with the run.
		for _, run := range []string{"", "*"} {
			g := grant{subject: schema.ServiceSubject(verb, fleet, run), verb: true, roles: verbRoles(verb)}
			if schema.Streamed(verb) {
				g.kind = streaming
			}
			list = append(list, g)
		}
	}
	add(service, schema.HeartbeatSubject(fleet, "*"), Executor, Operator)

	add(stream, schema.SettingsSubject(fleet), Observer, Executor, Operator)
	add(stream, schema.NoticeSubject(fleet, "*"), Executor, Operator)
	add(stream, "waymark.observed."+fleet+".>", Observer, Executor, Operator)
	add(stream, "waymark.checkpoints."+fleet+".*.*", Observer, Operator) // of all shards, including future ones

	api(service, "STREAM.MSG.GET.KV_"+schema.FleetBucket, Observer, Executor, Operator)
	// doctor inspects every stream and the account.
	api(service, "INFO", Observer, Operator)
	for _, name := range []string{"KV_" + schema.FleetBucket, "KV_" + schema.LeaseBucket, schema.DeadLetterStream(fleet)} {
		api(service, "STREAM.INFO."+name, Observer, Operator)
	}
	api(service, "STREAM.MSG.GET.KV_"+schema.LeaseBucket, Observer, Operator) // the time of the last backup, and the fold workers' leases
	api(service, "STREAM.MSG.GET."+schema.DeadLetterStream(fleet), Operator)
	api(streaming, "DIRECT.GET."+schema.DeadLetterStream(fleet), Operator)
	for i := range shards {
		n := schema.NamesOf(fleet, i)
		add(service, n.EventSubjects(), Executor, Operator)
		api(service, "STREAM.INFO."+n.EventStream(), Observer, Executor, Operator)
		api(service, "STREAM.MSG.GET."+n.EventStream(), Observer, Executor, Operator)
		api(streaming, "DIRECT.GET."+n.EventStream(), Observer, Executor, Operator)
		// A durable consumer for observers that must not miss events, created with the daemon's key or by NACK.
		api(service, "CONSUMER.INFO."+n.EventStream()+"."+ObserverConsumer, Observer, Operator)
		api(streaming, "CONSUMER.MSG.NEXT."+n.EventStream()+"."+ObserverConsumer, Observer, Operator)
		add(service, "$JS.ACK."+n.EventStream()+"."+ObserverConsumer+".>", Observer, Operator)
		// verify compares all stored data of a run with its events.
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
	// "nats micro ls" and "waymark fleet".
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		add(streaming, "$SRV."+verb, Observer, Operator)
		add(streaming, "$SRV."+verb+".waymark", Observer, Operator)
	}
	return list
}

// grants are those of the fleet. With separate duties, operators lose an executor's rights: to start or take over a
// run, to publish an event such as a question, to store a blob. Cancel stays: it requests nothing that needs an
// approval.
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

// Rights are the permissions of a user in the server's configuration.
type Rights struct {
	// Publish and Subscribe are the allowed subjects; the server refuses and logs all others.
	Publish, Subscribe []string
}

// Rights returns the rights of a role. More shards than exist are harmless.
func (a Account) Rights(role Role) Rights {
	if role == Daemon {
		r := daemonRights(a.Fleet, a.Shards)
		if a.Ending {
			r.Publish = append(r.Publish, serverAPI+"STREAM.DELETE.*")
		}
		return r
	}
	r := Rights{Subscribe: []string{InboxPrefix(role) + ".>"}}
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

// mappings are those of a client account. JetStream's requests are mapped to the imported subjects. What only the
// daemon may say there is mapped to nothing: the imported streams, on which an answer could speak to the account's
// other users, and the barrier's subject, which the import of all runs covers.
func (a Account) mappings() [][2]string {
	list := [][2]string{{serverAPI + ">", APIPrefix + ">"}}
	refuse := func(subject string) {
		if before, _, wild := strings.Cut(subject, "*"); wild {
			subject = before + ">" // the longest pattern that a mapping can carry over
		}
		list = append(list, [2]string{subject, refusedPrefix + strings.TrimPrefix(subject, "waymark.")})
	}
	for _, g := range a.grants() {
		if g.kind == stream {
			refuse(g.subject)
		}
	}
	for i := range a.Shards {
		refuse(schema.NamesOf(a.Fleet, i).EventSubject(schema.BarrierRun))
	}
	return list
}

// serverAPI is the prefix of JetStream's API.
const serverAPI = "$JS.API."

// daemonRights lists the daemon's actions on the streams of its fleet. It can do nothing to another stream.
func daemonRights(fleet string, shards int) Rights {
	r := Rights{
		Publish: []string{
			"_R_.>", InboxPrefix(Daemon) + ".>", // answers, to clients and to processes with its key
			schema.SettingsSubject(fleet), schema.NoticeSubject(fleet, "*"),
			schema.ObservedSubject(fleet, "*.*", "*"), serverAPI + "INFO", serverAPI + "STREAM.LIST", // its account's own
			infoSubject, "$SRV.STATS.waymark",
		},
		Subscribe: []string{
			InboxPrefix(Daemon) + ".>", "$SRV.>",
			schema.SettingsSubject(fleet), schema.HeartbeatSubject(fleet, "*"),
		},
	}
	for _, verb := range slices.Concat(readingVerbs, workingVerbs, decidingVerbs) {
		for _, run := range []string{"", "*"} {
			r.Subscribe = append(r.Subscribe, schema.ServiceSubject(verb, fleet, run))
			if !schema.Changes(verb) {
				r.Publish = append(r.Publish, schema.ServiceSubject(verb, fleet, run)) // for processes with its key: fleet add
			}
		}
	}
	own := func(stream string, derived bool, subjects ...string) {
		r.Publish = append(r.Publish, subjects...)
		for _, verb := range []string{"CREATE", "INFO", "UPDATE", "PURGE", "MSG.GET", "MSG.DELETE"} {
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
	// A backup reads whole streams, and a restore creates missing ones: a role that may read and create them can do
	// both already.
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

// Streams is the number of streams of a fleet.
func Streams(shards int) int { return 3*shards + 4 }

// shardsText is the number of shards for people.
func shardsText(n int) string {
	if n == 1 {
		return "one shard"
	}
	return strconv.Itoa(n) + " shards"
}
