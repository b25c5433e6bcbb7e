package natsconn

// Flags are the flags that name a server other than the local one, in the tags of kong.
type Flags struct {
	NATS     string `name:"nats" placeholder:"URL" help:"Address of the NATS server (NATS_URL)."`
	Context  string `placeholder:"NAME" help:"NATS context, by name or path (NATS_CONTEXT)."`
	Creds    string `placeholder:"FILE" help:"Credentials file (NATS_CREDS)."`
	User     string `placeholder:"NAME" help:"User (NATS_USER)."`
	Password string `placeholder:"TEXT" help:"Password; better set in the environment (NATS_PASSWORD)."`
	NKey     string `name:"nkey" placeholder:"FILE" help:"File with an NKey seed (NATS_NKEY)."`
	Token    string `placeholder:"TEXT" help:"Token; better set in the environment (NATS_TOKEN)."`
	TLSCA    string `name:"tls-ca" placeholder:"FILE" help:"CA certificates (NATS_CA)."`
	TLSCert  string `name:"tls-cert" placeholder:"FILE" help:"Client certificate (NATS_CERT)."`
	TLSKey   string `name:"tls-key" placeholder:"FILE" help:"Key of the client certificate (NATS_KEY)."`
	Inbox    string `name:"inbox-prefix" placeholder:"TEXT" help:"Inbox prefix, such as _INBOX_operator, if the context has none (NATS_INBOX_PREFIX)."`
}

// Settings are the flags as [Config] takes them.
func (f Flags) Settings() Settings {
	return Settings{
		URL: f.NATS, Context: f.Context, Creds: f.Creds, User: f.User, Password: f.Password,
		NKey: f.NKey, Token: f.Token, CA: f.TLSCA, Cert: f.TLSCert, Key: f.TLSKey, InboxPrefix: f.Inbox,
	}
}
