package natsconn

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// Settings name a server and the credentials for it, as flags in the tags of kong. Empty fields are not set.
type Settings struct {
	URL      string `name:"nats" placeholder:"URL" help:"Address of the NATS server (NATS_URL)."` // or several, separated by commas
	Context  string `placeholder:"NAME" help:"NATS context, by name or path (NATS_CONTEXT)."`
	Creds    string `placeholder:"FILE" help:"Credentials file (NATS_CREDS)."` // JWT and seed
	User     string `placeholder:"NAME" help:"User (NATS_USER)."`              // without a password is allowed
	Password string `placeholder:"TEXT" help:"Password; better set in the environment (NATS_PASSWORD)."`
	NKey     string `name:"nkey" placeholder:"FILE" help:"File with an NKey seed (NATS_NKEY)."`
	Token    string `placeholder:"TEXT" help:"Token; better set in the environment (NATS_TOKEN)."`
	CA       string `name:"tls-ca" placeholder:"FILE" help:"CA certificates (NATS_CA)."`
	Cert     string `name:"tls-cert" placeholder:"FILE" help:"Client certificate (NATS_CERT)."`
	Key      string `name:"tls-key" placeholder:"FILE" help:"Key of the client certificate (NATS_KEY)."`
	// InboxPrefix begins the subjects of answers to this user, if the server permits no others.
	InboxPrefix string `placeholder:"TEXT" help:"Inbox prefix, such as _INBOX_operator, if the context has none (NATS_INBOX_PREFIX)."`
}

// field is one setting with its name on the command line and in the environment.
type field struct {
	flag, variable string
	value          *string
}

func (s *Settings) fields() []field {
	return []field{
		{"--nats", "URL", &s.URL},
		{"--context", "CONTEXT", &s.Context},
		{"--creds", "CREDS", &s.Creds},
		{"--user", "USER", &s.User},
		{"--password", "PASSWORD", &s.Password},
		{"--nkey", "NKEY", &s.NKey},
		{"--token", "TOKEN", &s.Token},
		{"--tls-ca", "CA", &s.CA},
		{"--tls-cert", "CERT", &s.Cert},
		{"--tls-key", "KEY", &s.Key},
		{"--inbox-prefix", "INBOX_PREFIX", &s.InboxPrefix},
	}
}

// Variables are the environment variables that are read, in order; of two for one setting the first that is set
// wins.
func Variables() []string {
	var names []string
	var s Settings
	for _, f := range s.fields() {
		names = append(names, "WAYMARK_NATS_"+f.variable, "NATS_"+f.variable)
	}
	return names
}

// FromEnvironment reads the settings in the environment; getenv is os.Getenv in the program.
func FromEnvironment(getenv func(string) string) Settings {
	var s Settings
	for _, f := range s.fields() {
		*f.value = getenv("WAYMARK_NATS_" + f.variable)
		if *f.value == "" {
			*f.value = getenv("NATS_" + f.variable)
		}
	}
	return s
}

// Flags yields the settings as flags of a command line, in a fixed order, for commands that are shown. Secrets are
// left out: the password, the token, and the credentials within addresses.
func (s Settings) Flags() iter.Seq2[string, string] {
	s.Password, s.Token, s.URL = "", "", redact(s.URL)
	return func(yield func(flag, value string) bool) {
		for _, f := range s.fields() {
			if *f.value != "" && !yield(f.flag, *f.value) {
				return
			}
		}
	}
}

// NamesServer reports whether the settings name a server, by address or context.
func (s Settings) NamesServer() bool { return s.URL != "" || s.Context != "" }

// hasCredentials reports whether the settings have credentials.
func (s Settings) hasCredentials() bool {
	return s.Creds != "" || s.User != "" || s.Password != "" || s.NKey != "" || s.Token != ""
}

// credentials returns s with the credentials of over: the user as a whole, TLS field by field.
func (s Settings) credentials(over Settings) Settings {
	if over.hasCredentials() {
		s.Creds, s.User, s.Password, s.NKey, s.Token = over.Creds, over.User, over.Password, over.NKey, over.Token
	}
	if over.InboxPrefix != "" {
		s.InboxPrefix = over.InboxPrefix
	}
	for to, from := range map[*string]string{&s.CA: over.CA, &s.Cert: over.Cert, &s.Key: over.Key} {
		if from != "" {
			*to = from
		}
	}
	return s
}

// validate reports settings that contradict each other and files that cannot be read.
func (s Settings) validate(origin Origin) error {
	var kinds []string
	for name, value := range map[string]string{"--creds": s.Creds, "--user": s.User, "--nkey": s.NKey, "--token": s.Token} {
		if value != "" {
			kinds = append(kinds, s.named(name, origin))
		}
	}
	slices.Sort(kinds)
	switch {
	case len(kinds) > 1:
		return fmt.Errorf("%w: %s are set at once: keep one of them", ErrSettings, strings.Join(kinds, " and "))
	case s.Password != "" && s.User == "":
		return fmt.Errorf("%w: %s is set without %s", ErrSettings, s.named("--password", origin), s.named("--user", origin))
	case s.InboxPrefix != "" && schema.CheckReply(s.InboxPrefix+".x") != nil:
		return fmt.Errorf("%w: %s %q is no prefix of an inbox that the daemon answers: use for example _INBOX_executor", ErrSettings, s.named("--inbox-prefix", origin), s.InboxPrefix)
	case (s.Cert == "") != (s.Key == ""):
		return fmt.Errorf("%w: %s and %s only work together", ErrSettings, s.named("--tls-cert", origin), s.named("--tls-key", origin))
	}
	files := []struct{ name, path string }{
		{"--creds", s.Creds}, {"--nkey", s.NKey}, {"--tls-ca", s.CA}, {"--tls-cert", s.Cert}, {"--tls-key", s.Key},
	}
	for _, f := range files {
		if f.path == "" {
			continue
		}
		if err := readable(f.path); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrSettings, s.named(f.name, origin), err)
		}
	}
	return nil
}

// KeyOption returns the public key in the file of --nkey or --creds, and the option with which a connection proves
// itself by it. Without such a file the key is "". A local server only has such a user if it is configured with the
// key.
func (s Settings) KeyOption() (public string, option nats.Option, err error) {
	if err := s.validate(OriginFlag); err != nil {
		return "", nil, err
	}
	file := cmp.Or(s.NKey, s.Creds)
	if file == "" {
		return "", nil, nil
	}
	option, err = nats.NkeyOptionFromSeed(file)
	if err != nil {
		return "", nil, fmt.Errorf("%w: seed of a user in %s: %w", ErrSettings, file, err)
	}
	var opts nats.Options
	if err := option(&opts); err != nil {
		return "", nil, fmt.Errorf("%w: seed of a user in %s: %w", ErrSettings, file, err)
	}
	return opts.Nkey, option, nil
}

func readable(path string) error {
	// The opening of a named pipe waits for a writer.
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return fmt.Errorf("%s is a pipe: copy its content into a file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

// named is a setting's name for people: its flag or its variable.
func (s Settings) named(flag string, origin Origin) string {
	if origin != OriginEnvironment {
		return flag
	}
	for _, f := range s.fields() {
		if f.flag == flag {
			return "NATS_" + f.variable
		}
	}
	return flag
}

// options are the connection options of credentials and TLS. They override those of a context.
func (s Settings) options() ([]nats.Option, error) {
	var opts []nats.Option
	if s.hasCredentials() {
		opts = append(opts, func(o *nats.Options) error {
			o.User, o.Password, o.Token, o.Nkey = "", "", "", ""
			o.UserJWT, o.SignatureCB, o.TokenHandler, o.UserInfo = nil, nil, nil, nil
			return nil
		})
	}
	switch {
	case s.Creds != "":
		opts = append(opts, nats.UserCredentials(s.Creds))
	case s.NKey != "":
		nkey, err := nats.NkeyOptionFromSeed(s.NKey)
		if err != nil {
			return nil, fmt.Errorf("%w: nkey seed in %s: %w", ErrSettings, s.NKey, err)
		}
		opts = append(opts, nkey)
	case s.User != "":
		opts = append(opts, nats.UserInfo(s.User, s.Password))
	case s.Token != "":
		opts = append(opts, nats.Token(s.Token))
	}
	if s.Cert != "" {
		if _, err := tls.LoadX509KeyPair(s.Cert, s.Key); err != nil {
			return nil, fmt.Errorf("%w: certificate %s with key %s: %w", ErrSettings, s.Cert, s.Key, err)
		}
		opts = append(opts, nats.ClientCert(s.Cert, s.Key))
	}
	if s.CA != "" {
		opts = append(opts, nats.RootCAs(s.CA))
	}
	if s.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(s.InboxPrefix))
	}
	return opts, nil
}
