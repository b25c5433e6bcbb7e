package publisher

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/schema"
)

// Defaults of [Config].
const (
	DefaultPublishTimeout = 10 * time.Second
	DefaultTryTimeout     = 2 * time.Second
	DefaultRequestTimeout = 30 * time.Second
	defaultVerifyTimeout  = 10 * time.Second
	DefaultFullPatience   = 30 * time.Second
	DefaultFullTimeout    = 2 * time.Minute
	DefaultBackoff        = 2 * time.Millisecond
	DefaultMaxBackoff     = 500 * time.Millisecond
	DefaultInlineLimit    = 256 << 10
	DefaultWindowEvents   = 64
	DefaultWindowBytes    = 1 << 20
	DefaultMaxBlob        = 64 << 20
)

const (
	// eventTarget is the size above which more fields of an event move to the blob store: a full event then still
	// fits the stream's limit of 512 KiB with its headers.
	eventTarget = 448 << 10
	// eventLimit is what an event may have at most; the stream refuses more.
	eventLimit = 512<<10 - 2<<10
	// batchFrom is the number of events from which they are published as one atomic batch. On one replica a smaller batch takes longer
	// than its events one after the other: the server stages each batch in files of its own.
	batchFrom = 16
)

// Config says who the executor is and how it publishes. Executor is required.
//
// Without URL and Conn, Connect finds the server as the commands of waymark do; the first of these that names one decides: the environment
// (WAYMARK_NATS_URL, NATS_URL, WAYMARK_NATS_CONTEXT, NATS_CONTEXT, with NATS_CREDS and the like as credentials), the server that
// "waymark serve" runs on this machine for this user (its state directory is WAYMARK_STATE_DIR's, or the default one), and the context
// that was chosen with "nats context select".
type Config struct {
	// URL of the NATS servers, separated by commas, dialled by Connect. The environment is not looked at then: credentials are in Options.
	URL string
	// Options for dialling: credentials, TLS, names. They are added to those of the context or the environment. Reconnect buffering
	// is switched off in any case.
	Options []nats.Option
	// Conn is a connection to use instead of dialling. It must have been made with nats.ReconnectBufSize(-1), for
	// buffered messages are published after their caller gave up. It is not closed by Close.
	Conn *nats.Conn

	// Fleet the runs belong to; empty means [schema.DefaultFleet]. Where the server is found by itself (no Conn, no URL), empty means
	// the fleet that WAYMARK_FLEET names, as for the commands.
	Fleet string
	// Executor is the name of this process. Required.
	Executor string
	// Agent that runs are started with when their spec names none. Empty means that each spec names its own.
	Agent string
	// Instance tells this start of the process from the next one under the same name, so that nobody takes the runs
	// that the last one left behind for its own. Empty means that Connect makes one, with a key that signs its heartbeats
	// so that no other process can send them, or that runs name none where there are no heartbeats. One that is given here
	// is not proven.
	Instance string
	// Heartbeat is the pace at which the executor says that it lives, once it has a run in hand or looks for one; 0
	// means as often as the fleet's silence needs it, every 3 seconds by default (schema.FleetSettings.Heartbeat). A
	// negative duration means that it says nothing: its runs are then orphaned when they are silent for as long as the
	// fleet allows.
	Heartbeat time.Duration

	// PublishTimeout is the deadline of one event or batch, retries included; 0 means 10 seconds. It does not count while
	// the fleet is full.
	PublishTimeout time.Duration
	// TryTimeout is how long one try waits for its answer before the same event is sent again; 0 means 2 seconds.
	TryTimeout time.Duration
	// FullPatience is how long an event waits in a full fleet, counted from the last time that its daemon was seen making
	// room: what is moved to segments leaves the log. 0 means 30 seconds, a negative duration that it does not wait. The
	// caller's context ends the wait at any time.
	FullPatience time.Duration
	// FullTimeout bounds the wait of an event in a full fleet as a whole, when room is made and others take it; 0 means 2
	// minutes. The start of a run waits for 30 seconds at most.
	FullTimeout time.Duration
	// RequestTimeout is the deadline of a request to the daemon up to its first reply; 0 means 30 seconds. An answer
	// of several replies may take longer, as long as it goes on.
	RequestTimeout time.Duration
	// VerifyTimeout is how long the tool of a call in doubt is asked what became of it, tries while nobody listens
	// included; 0 means 10 seconds. A call that is not verified by then is held.
	VerifyTimeout time.Duration
	// Policy decides about every call before its tool runs; nil means that all of them may. What it did not allow has no result in the record:
	// the SDK refuses it with [ErrNotAllowed], whatever the call was made by. Runs need their content for it: it is no use with HeadOnly.
	Policy Policy
	// PolicyMode is [PolicyEnforce], the default, or [PolicyObserve].
	PolicyMode PolicyMode
	// Backoff is the first wait between tries, with jitter, doubled up to MaxBackoff; 0 means 2 ms.
	Backoff time.Duration
	// MaxBackoff is the longest wait between tries; 0 means 500 ms.
	MaxBackoff time.Duration

	// InlineLimit is the size in bytes above which a field goes to the blob store; 0 means 256 KiB, which is
	// also the most.
	InlineLimit int
	// MaxBlob bounds a blob that is loaded, in bytes; 0 means 64 MiB.
	MaxBlob int64

	// Redaction says what is taken out of every event before anything of it leaves this process; nil means nothing.
	Redaction *Redaction
	// Encryption encrypts the content of every event before anything of it leaves this process, behind Redaction; nil means that it is not
	// encrypted. An executor that has no keys cannot go on with a run that is.
	Encryption *Encryption

	// Now is the clock of events without a given time; nil means time.Now.
	Now func() time.Time
	// Logger gets what has no caller: nil means silence.
	Logger *zerolog.Logger
}

// reader is what a reader needs of it.
func (c Config) reader() ReaderConfig {
	return ReaderConfig{
		URL: c.URL, Options: c.Options, Conn: c.Conn, Fleet: c.Fleet, RequestTimeout: c.RequestTimeout, Backoff: c.Backoff,
		MaxBackoff: c.MaxBackoff, MaxBlob: c.MaxBlob, Encryption: c.Encryption,
	}
}

func (c Config) withDefaults() Config {
	r := c.reader().withDefaults()
	c.Fleet, c.RequestTimeout, c.Backoff, c.MaxBackoff, c.MaxBlob = r.Fleet, r.RequestTimeout, r.Backoff, r.MaxBackoff, r.MaxBlob
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.TryTimeout = cmp.Or(c.TryTimeout, DefaultTryTimeout)
	c.FullPatience = cmp.Or(c.FullPatience, DefaultFullPatience)
	c.FullTimeout = cmp.Or(c.FullTimeout, DefaultFullTimeout)
	c.VerifyTimeout = cmp.Or(c.VerifyTimeout, defaultVerifyTimeout)
	c.InlineLimit = cmp.Or(c.InlineLimit, DefaultInlineLimit)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		nop := zerolog.Nop()
		c.Logger = &nop
	}
	return c
}

// Validate reports the first field that is out of range. The error wraps [ErrConfig].
func (c Config) Validate() error {
	name := func(field, value string) error {
		if err := schema.CheckName(field, value); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		return nil
	}
	c = c.withDefaults()
	if err := c.reader().Validate(); err != nil {
		return err
	}
	if err := name("Executor", c.Executor); err != nil {
		return err
	}
	if c.Agent != "" {
		if err := name("Agent", c.Agent); err != nil {
			return err
		}
	}
	if c.Instance != "" {
		if err := name("Instance", c.Instance); err != nil {
			return err
		}
	}
	switch {
	case c.Heartbeat > 0 && c.Heartbeat < time.Millisecond:
		return configError("Heartbeat", c.Heartbeat, "use at least a millisecond, or a negative duration for none")
	case c.PublishTimeout < 0:
		return configError("PublishTimeout", c.PublishTimeout, "use a duration above 0")
	case c.TryTimeout < 0:
		return configError("TryTimeout", c.TryTimeout, "use a duration above 0")
	case c.FullTimeout < 0:
		return configError("FullTimeout", c.FullTimeout, "use a duration above 0; a negative FullPatience is for not waiting")
	case c.VerifyTimeout < 0:
		return configError("VerifyTimeout", c.VerifyTimeout, "use a duration above 0")
	case c.PolicyMode != "" && c.PolicyMode != PolicyEnforce && c.PolicyMode != PolicyObserve:
		return configError("PolicyMode", fmt.Sprintf("%.40q", c.PolicyMode), "use PolicyEnforce or PolicyObserve")
	case c.PolicyMode != "" && c.Policy == nil:
		return configError("PolicyMode", string(c.PolicyMode)+" without a Policy", "set Policy, too")
	case c.InlineLimit < 1<<10 || c.InlineLimit > DefaultInlineLimit:
		return configError("InlineLimit", c.InlineLimit, fmt.Sprintf("use 1024 to %d bytes", DefaultInlineLimit))
	}
	if err := c.Encryption.validate(true); err != nil {
		return err
	}
	if c.Redaction != nil {
		if err := c.Redaction.validate(); err != nil {
			return err
		}
	}
	if c.Conn != nil && c.Conn.Opts.AllowReconnect && c.Conn.Opts.ReconnectBufSize >= 0 {
		return configError("Conn", "a connection with a reconnect buffer",
			"connect with nats.ReconnectBufSize(-1): buffered events would be published after their caller gave up")
	}
	return nil
}
