package nemesis_test

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo answers each line with itself, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-done
	})
	return l.Addr().String()
}

func port(p *Proxy) string { return strconv.Itoa(p.Port()) }

// talker speaks through a proxy.
type talker struct {
	net.Conn
	r *bufio.Reader
}

func dialProxy(t *testing.T, p *Proxy) *talker {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port(p)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &talker{c, bufio.NewReader(c)}
}

func (c *talker) say(t *testing.T, line string) {
	t.Helper()
	_, err := io.WriteString(c, line+"\n")
	require.NoError(t, err)
}

func (c *talker) hears(t *testing.T, line string) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	got, err := c.r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line, strings.TrimSpace(got))
}

// ends reads until the connection ends, and returns the data before.
func (c *talker) ends(t *testing.T) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	rest, err := io.ReadAll(c.r)
	var timeout net.Error
	if err != nil {
		require.False(t, errorsAs(err, &timeout) && timeout.Timeout(), "the connection never ends")
	}
	return string(rest)
}

func newProxy(t *testing.T) *Proxy {
	t.Helper()
	p, err := NewProxy(t.Context(), echo(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestProxy_Cut_EndsOpenRefusesNew(t *testing.T) {
	p := newProxy(t)
	c := dialProxy(t, p)
	c.say(t, "one")
	c.hears(t, "one")
	p.Set(Weather{Cut: true})
	require.Empty(t, c.ends(t))
	require.Empty(t, dialProxy(t, p).ends(t))
	p.Set(Weather{})
	c = dialProxy(t, p)
	c.say(t, "two")
	c.hears(t, "two")
}

func TestProxy_HeldBytes_LostInOrder(t *testing.T) {
	for _, way := range []Way{Forth, Back} {
		p := newProxy(t)
		c := dialProxy(t, p)
		c.say(t, "one")
		c.hears(t, "one")
		var w Weather
		w.Hold[way] = true
		p.Set(w)
		c.say(t, "lost")
		// The other end is asked nothing, so that only the change of weather can end the connection.
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, err := c.r.ReadByte()
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout(), "the connection stays open while it is held")
		p.Set(Weather{})
		require.Empty(t, c.ends(t))
	}
}

func TestProxy_CutInMessage_Ends(t *testing.T) {
	p := newProxy(t)
	p.Set(Weather{CutAfter: 12})
	c := dialProxy(t, p)
	c.say(t, "0123456789") // eleven bytes forth, and the first of the reply
	require.Equal(t, "0", c.ends(t))
}

func TestProxy_Delay_LosesNothing(t *testing.T) {
	p := newProxy(t)
	p.Set(Weather{Delay: 5 * time.Millisecond, StallEvery: 2, Stall: 20 * time.Millisecond})
	c := dialProxy(t, p)
	begun := time.Now()
	for _, line := range []string{"one", "two", "three", "four"} {
		c.say(t, line)
		c.hears(t, line)
	}
	require.GreaterOrEqual(t, time.Since(begun), 80*time.Millisecond)
	require.Equal(t, 1, p.Accepted())
}
