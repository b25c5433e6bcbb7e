package publisher

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// Defaults of [Config].
const (
	DefaultPublishTimeout = 10 * time.Second
	DefaultTryTimeout     = 2 * time.Second
	DefaultRequestTimeout = 30 * time.Second
	defaultVerifyTimeout  = 10 * time.Second
	DefaultFullPatience   = time.Minute
	DefaultBackoff        = 2 * time.Millisecond
	DefaultMaxBackoff     = 500 * time.Millisecond
	// DefaultInlineLimit is the size in bytes above which a field goes to the blob store.
	DefaultInlineLimit = 256 << 10
	DefaultMaxBlob     = 64 << 20
)

const (
	// eventTarget is the size above which more fields of an event move to the blob store. An event of this size fits
	// the stream's limit of 512 KiB together with its headers.
	eventTarget = 448 << 10
	// eventLimit is the maximum size of an event; the stream refuses larger ones.
	eventLimit = 512<<10 - 2<<10
)

// Config identifies the executor and says how it publishes. Executor is required. A [Reader] uses only the server, Fleet,
// RequestTimeout, MaxBlob and Encryption.
//
// Without URL and Conn, Connect finds the server as the waymark commands do. The first source that names a server wins:
// the environment (WAYMARK_NATS_URL, NATS_URL, WAYMARK_NATS_CONTEXT, NATS_CONTEXT, with credentials from NATS_CREDS and
// the like); the server of "waymark serve" on this machine for this user (in WAYMARK_STATE_DIR or the default state
// directory); the context chosen with "nats context select".
type Config struct {
	// URL of the NATS servers, separated by commas. If it is set, Connect ignores the environment: give credentials in
	// Options.
	URL string
	// Options for dialling: credentials, TLS, names. They are added to those of the context or the environment.
	// Reconnect buffering is always switched off.
	Options []nats.Option
	// Conn is a connection to use instead of dialling. Create it with nats.ReconnectBufSize(-1): buffered messages
	// would be published after their caller gave up. Close does not close it.
	Conn *nats.Conn

	// Fleet of the runs; empty means [schema.DefaultFleet]. Without Conn and URL, empty means the fleet of
	// WAYMARK_FLEET, as for the commands.
	Fleet string
	// Executor is the name of this process. Required.
	Executor string
	// Agent of runs whose spec names none. If it is empty, each spec must name an agent.
	Agent string
	// Build is the version of this program, for comparison with other builds that run the same agents: [schema.Version].
	// Empty means the version of the main module and its revision, as the Go toolchain wrote them into the program.
	Build string
	// Heartbeat is the interval of the executor's heartbeats, once it has an active run or looks for one. 0 means the
	// interval that the fleet's silence timeout requires, 3 seconds by default (schema.FleetSettings.Heartbeat). A
	// negative duration means no heartbeats: each run is then orphaned after the fleet's silence, whatever it publishes.
	Heartbeat time.Duration

	// PublishTimeout is the deadline of one event, retries included; 0 means 10 seconds. Time while the fleet
	// is full does not count.
	PublishTimeout time.Duration
	// TryTimeout is how long one try waits for its acknowledgement before the event is sent again; 0 means 2 seconds.
	TryTimeout time.Duration
	// FullPatience is how long an event waits in a full fleet, while the daemon frees space in the log by moving events
	// to segments. 0 means one minute; a negative duration means no wait. The caller's context ends the wait at any
	// time.
	FullPatience time.Duration
	// RequestTimeout is the deadline of a request to the daemon up to its first reply; 0 means 30 seconds. An answer of
	// several replies may take longer while replies keep coming.
	RequestTimeout time.Duration
	// VerifyTimeout bounds the verification of a call in doubt, including tries while no tool listens; 0 means 10
	// seconds. A call that is not verified by then is held.
	VerifyTimeout time.Duration
	// Policy decides about every call before its tool runs; nil allows all calls. A call that it did not allow gets no
	// result in the record: every way to record one returns [ErrNotAllowed].
	Policy Policy
	// PolicyMode is [PolicyEnforce] (the default) or [PolicyObserve].
	PolicyMode PolicyMode

	// MaxBlob bounds a blob that is loaded, in bytes; 0 means 64 MiB. A [Fleet] keeps as many bytes of blobs in memory,
	// and at most [MaxKeptBlobs].
	MaxBlob int64

	// Redaction is applied to every event before it leaves this process; nil means no redaction.
	Redaction *Redaction
	// Encryption encrypts the content of every event before it leaves this process, after Redaction; nil means no
	// encryption. An executor without keys cannot resume an encrypted run.
	Encryption *Encryption

	// Now is the clock of events; nil means time.Now.
	Now func() time.Time
	// Logger gets messages that have no caller to return them to; nil means no logging.
	Logger *zerolog.Logger
}

// pauses returns the waits between tries, with jitter, doubled.
func pauses() *pause.Backoff { return &pause.Backoff{Next: DefaultBackoff, Most: DefaultMaxBackoff} }

func (c Config) withDefaults() Config {
	if c.Fleet == "" && c.Conn == nil && c.URL == "" {
		c.Fleet = os.Getenv("WAYMARK_FLEET")
	}
	c.Fleet = cmp.Or(c.Fleet, schema.DefaultFleet)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	c.MaxBlob = cmp.Or(c.MaxBlob, DefaultMaxBlob)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.TryTimeout = cmp.Or(c.TryTimeout, DefaultTryTimeout)
	c.FullPatience = cmp.Or(c.FullPatience, DefaultFullPatience)
	c.VerifyTimeout = cmp.Or(c.VerifyTimeout, defaultVerifyTimeout)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		nop := zerolog.Nop()
		c.Logger = &nop
	}
	return c
}

// validateReader reports the first field that is out of range, of those that a [Reader] uses.
func (c Config) validateReader() error {
	c = c.withDefaults()
	if err := schema.CheckName("Fleet", c.Fleet); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	switch {
	case c.URL != "" && c.Conn != nil:
		return configError("URL", c.URL, "leave it empty if Conn is set")
	case c.Conn != nil && len(c.Options) > 0:
		return configError("Options", len(c.Options), "they are for dialling; remove them if Conn is set")
	case c.RequestTimeout < 0:
		return configError("RequestTimeout", c.RequestTimeout, "use a duration above 0")
	case c.MaxBlob < 0:
		return configError("MaxBlob", c.MaxBlob, "use a number of bytes above 0")
	}
	return c.Encryption.validate(false)
}

// Validate reports the first field that is out of range. The error wraps [ErrConfig].
func (c Config) Validate() error {
	if err := c.validateReader(); err != nil {
		return err
	}
	c = c.withDefaults()
	for _, name := range []struct{ field, value string }{{"Executor", c.Executor}, {"Agent", cmp.Or(c.Agent, "none")}} {
		if err := schema.CheckName(name.field, name.value); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	switch {
	case c.Heartbeat > 0 && c.Heartbeat < time.Millisecond:
		return configError("Heartbeat", c.Heartbeat, "use at least a millisecond, or a negative duration for none")
	case c.PublishTimeout < 0:
		return configError("PublishTimeout", c.PublishTimeout, "use a duration above 0")
	case c.TryTimeout < 0:
		return configError("TryTimeout", c.TryTimeout, "use a duration above 0")
	case c.VerifyTimeout < 0:
		return configError("VerifyTimeout", c.VerifyTimeout, "use a duration above 0")
	case len(c.Build) > schema.MaxBuild || c.Build != "" && recordable(c.Build) != c.Build:
		return configError("Build", fmt.Sprintf("%.40q", c.Build), fmt.Sprintf("use at most %d bytes, without control characters", schema.MaxBuild))
	case c.PolicyMode != "" && c.PolicyMode != PolicyEnforce && c.PolicyMode != PolicyObserve:
		return configError("PolicyMode", fmt.Sprintf("%.40q", c.PolicyMode), "use PolicyEnforce or PolicyObserve")
	case c.PolicyMode != "" && c.Policy == nil:
		return configError("PolicyMode", string(c.PolicyMode)+" without a Policy", "set Policy, or remove PolicyMode")
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
