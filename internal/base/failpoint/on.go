//go:build waymark_failpoints

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Enabled says that this binary has failpoints.
const Enabled = true

// Hook is called when work reaches a point. It may wait, and an error ends the work there.
type Hook func(context.Context, Point) error

type hookKey struct{}

// With returns a context under which work calls the hook.
func With(ctx context.Context, hook Hook) context.Context {
	return context.WithValue(ctx, hookKey{}, hook)
}

// Hit reports that work is at a point. An error means that it must not continue.
func Hit(ctx context.Context, p Point) error {
	if hook, ok := ctx.Value(hookKey{}).(Hook); ok {
		return hook(ctx, p)
	}
	return environment().hit(p)
}

// ErrFailed ends work at a point that the environment makes fail. Its daemon tries again.
var ErrFailed = errors.New("failed at a failpoint")

// outside is the setting in the environment.
type outside struct {
	point  Point
	at     int64
	action string
	met    atomic.Int64
}

var environment = sync.OnceValue(func() *outside {
	o, err := parse(os.Getenv(PointVariable))
	if err != nil {
		panic(err) // a test without an effect proves nothing
	}
	return o
})

func parse(s string) (*outside, error) {
	o := new(outside)
	if s == "" {
		return o, nil
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("%s is %q: want POINT:N:ACTION", PointVariable, s)
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	known := false
	for _, p := range Points() {
		known = known || string(p) == parts[0]
	}
	action := parts[2]
	if err != nil || n < 1 || !known || action != "kill" && action != "stop" && action != "fail" {
		return nil, fmt.Errorf("%s is %q: the point, the number or the action is invalid", PointVariable, s)
	}
	o.point, o.at, o.action = Point(parts[0]), n, action
	return o, nil
}

func (o *outside) hit(p Point) error {
	if p != o.point || o.met.Add(1) != o.at {
		return nil
	}
	if o.action == "fail" {
		return fmt.Errorf("%w: %s", ErrFailed, p)
	}
	if err := end(o.action); err != nil {
		return fmt.Errorf("%s at %s: %w", o.action, p, err)
	}
	return nil
}
