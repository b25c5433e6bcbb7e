package due_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/due"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return when
}

// between are the due times of a schedule after one time, up to another.
func between(t *testing.T, spec, zone, from, to string) []string {
	t.Helper()
	times, err := due.Parse(spec, zone)
	require.NoError(t, err)
	list := []string{}
	for when := range times.After(at(t, from)) {
		if when.After(at(t, to)) {
			break
		}
		list = append(list, when.Format(time.RFC3339))
	}
	return list
}

// What docs/people.md says of both changes of summer time.
func TestTimes_SummerTimeBeginsAndEnds_FireAsThePageSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec, zone, from, to string
		want                 []string
	}{
		"a skipped time is due an hour later": {
			"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-31T12:00:00Z",
			[]string{"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"},
		},
		"together with one that is due then": {
			"30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z",
			[]string{"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z", "2026-03-30T01:30:00Z"},
		},
		"a skipped midnight, too": {
			"0 0 * * *", "Africa/Cairo", "2026-04-22T12:00:00Z", "2026-04-25T12:00:00Z",
			[]string{"2026-04-22T22:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"},
		},
		"and half an hour": {
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00:00Z", "2026-10-04T20:00:00Z",
			[]string{"2026-10-02T15:45:00Z", "2026-10-03T15:45:00Z", "2026-10-04T15:15:00Z"},
		},
		"a time that comes twice is due the first time": {
			"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		},
		"so that the second hour has none": {
			"*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T02:30:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"},
		},
		"UTC has no such hours": {
			"0 2 * * *", "", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z",
			[]string{"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"},
		},
		"one of two restricted days is enough": {
			"0 7 1 * 5", "", "2026-12-01T00:00:00Z", "2026-12-11T12:00:00Z",
			[]string{"2026-12-01T07:00:00Z", "2026-12-04T07:00:00Z", "2026-12-11T07:00:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, between(t, c.spec, c.zone, c.from, c.to))
		})
	}
}

// All daemons have to agree on the due times, wherever each begins.
func TestTimes_AnyBegin_SameDueTimes(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"30 2 * * *", "*/20 2 * * *", "*/15 * * * *", "0 0 * * *", "59 1-3 * * *", "5 */2 * * 0"} {
		for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"} {
			for _, month := range []time.Month{time.March, time.April, time.October, time.November} {
				times, err := due.Parse(spec, zone)
				require.NoError(t, err)
				from := time.Date(2026, month, 1, 0, 0, 0, 0, time.UTC)
				all := times.Latest(from, from.AddDate(0, 1, 0), 1<<20)
				for began := from; began.Before(from.AddDate(0, 1, 0)); began = began.Add(29 * time.Minute) {
					want := slices.IndexFunc(all, func(t time.Time) bool { return t.After(began) })
					next, ok := times.Next(began)
					require.True(t, ok)
					if want >= 0 {
						require.Equal(t, all[want], next, "%s %s after %s", spec, zone, began)
					}
				}
			}
		}
	}
}

func TestTimes_Latest_AreTheLastOnesUpToNow(t *testing.T) {
	t.Parallel()
	times, err := due.Parse("0 7 * * *", "")
	require.NoError(t, err)
	since, now := at(t, "2026-12-01T07:00:00Z"), at(t, "2026-12-04T07:00:00Z")
	require.Equal(t, []time.Time{at(t, "2026-12-03T07:00:00Z"), now}, times.Latest(since, now, 2))
	require.Len(t, times.Latest(since, now, 9), 3, "not the time at which it was set, but the present one")
	require.Empty(t, times.Latest(now, now.Add(time.Hour), 1))
}

func TestParse_NotACrontab_SaysWhatIsRight(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"", "@every 1s", "@daily", "0 0 0 * * *", "* * * *", "60 * * * *", "TZ=Asia/Tokyo 0 7 * * *", "H * * * *", "0 7 L * *"} {
		_, err := due.Parse(spec, "")
		require.ErrorContains(t, err, "use five fields", spec)
	}
	for _, zone := range []string{"Local", "Nope/Berlin", "../UTC", "Europe/Berlin 1"} {
		_, err := due.Parse("0 7 * * *", zone)
		require.ErrorContains(t, err, "IANA", zone)
	}
	times, err := due.Parse("0 0 31 2 *", "")
	require.NoError(t, err)
	_, ok := times.Next(at(t, "2026-12-01T00:00:00Z"))
	require.False(t, ok)
}
