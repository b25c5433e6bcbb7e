package cli

import (
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/natsd"
)

// unclean forgets an unclean stop of the embedded server once every shard has made good for it.
type unclean struct {
	server *natsd.Server
	open   atomic.Int64
	log    zerolog.Logger
}

func newUnclean(server *natsd.Server, shards int, log zerolog.Logger) *unclean {
	u := &unclean{server: server, log: log}
	u.open.Store(int64(shards))
	return u
}

// shardDone is called once by each shard's folder.
func (u *unclean) shardDone() {
	if u.open.Add(-1) != 0 || u.server == nil {
		return
	}
	if err := u.server.ClearUnclean(); err != nil {
		u.log.Warn().Err(err).Msg("the unclean stop stays on record: the next start folds from the safe watermark once more")
	}
}
