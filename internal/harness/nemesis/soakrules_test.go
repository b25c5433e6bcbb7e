//go:build unix

package nemesis_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	soakedKey  = soakKey{Of: "daemon-0", Figure: "heap"}
	soakedRule = soakRule{Figure: "heap", Share: 0.2, Least: 10}
)

// soakJudged is the verdict on a figure that is value(i) at the second i of a thousand, judged from the hundredth on.
func soakJudged(t require.TestingT, value func(i int) float64, r soakRule, removed int) soakVerdict {
	var l soakLog
	for i := range 1000 {
		l.Add(time.Duration(i)*time.Second, soakedKey, value(i))
	}
	all := l.Judge(100*time.Second, []soakRule{r}, removed)
	require.Len(t, all, 1)
	require.Equal(t, 900, all[0].Points)
	require.True(t, all[0].Judged)
	return all[0]
}

func TestSoakJudge_Steady_Flat(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for name, value := range map[string]func(i int) float64{
		"the same": func(int) float64 { return 100 },
		"noise":    func(int) float64 { return 100 + 60*rnd.Float64() },
		"saw":      func(i int) float64 { return 100 + float64(i%90) },
		"a long saw": func(i int) float64 {
			return 100 + 100*math.Abs(math.Mod(float64(i), 300)/300)
		},
		"filled in the warm-up": func(i int) float64 { return min(100, float64(i)) + 100 },
		"falls":                 func(i int) float64 { return 2000 - float64(i) },
		"one step": func(i int) float64 {
			if i > 600 {
				return 200
			}
			return 100
		},
		"rises less than it may": func(i int) float64 { return 100 + float64(i)*0.02 },
		"spikes": func(i int) float64 {
			if i%10 == 0 {
				return 1000
			}
			return 100
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := soakJudged(t, value, soakedRule, 0)
			require.False(t, v.Rose, "%s", v)
		})
	}
}

func TestSoakJudge_Leak_Found(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for name, value := range map[string]func(i int) float64{
		"a little each second": func(i int) float64 { return 100 + float64(i)*0.05 },
		"below a saw's teeth":  func(i int) float64 { return 100 + float64(i%60) + float64(i)*0.2 },
		"below noise":          func(i int) float64 { return 100 + 60*rnd.Float64() + float64(i)*0.2 },
		"in steps":             func(i int) float64 { return 100 + float64(i/100*20) },
		"below spikes": func(i int) float64 {
			if i%10 == 0 {
				return 1000
			}
			return 100 + float64(i)*0.05
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := soakJudged(t, value, soakedRule, 0)
			require.True(t, v.Rose, "%s", v)
			require.Contains(t, v.String(), "heap of daemon-0: 1")
		})
	}
}

// TestJudge_SteadyRise_FoundFromThreshold draws rises and rules: the verdict is the one that arithmetic gives.
func TestSoakJudge_SteadyRise_FoundFromThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.Float64Range(0, 1e6).Draw(t, "level")
		rise := rapid.Float64Range(0, 1000).Draw(t, "a second")
		r := soakRule{
			Figure: "heap", Share: rapid.Float64Range(0, 1).Draw(t, "share"), Least: rapid.Float64Range(0, 1e5).Draw(t, "least"),
			PerRun: rapid.Float64Range(0, 10).Draw(t, "per run"),
		}
		removed := rapid.IntRange(0, 1000).Draw(t, "removed")
		v := soakJudged(t, func(i int) float64 { return level + rise*float64(i) }, r, removed)
		first := level + rise*(100+899.0/6)
		allowed := max(r.Share*first, r.Least) + r.PerRun*float64(removed)*2/3
		rose := rise * 899 * 2 / 3
		if math.Abs(rose-allowed) < 1+2*rise { // the medians are of whole seconds
			return
		}
		require.Equal(t, rose > allowed, v.Rose, "%s", v)
	})
}

func TestSoakJudge_RemovedRuns_LeaveAllowed(t *testing.T) {
	leaves := func(i int) float64 { return 100 + float64(i)*3 } // 3 for each run, one a second
	require.True(t, soakJudged(t, leaves, soakedRule, 900).Rose)
	r := soakedRule
	r.PerRun = 3
	require.False(t, soakJudged(t, leaves, r, 900).Rose)
	require.True(t, soakJudged(t, func(i int) float64 { return 100 + float64(i)*4 }, r, 900).Rose)
}

func TestSoakJudge_TooFewPoints_NotJudged(t *testing.T) {
	var l soakLog
	for i := range 8 {
		l.Add(time.Duration(i)*time.Second, soakedKey, float64(i)*1e9)
	}
	for i := range 100 {
		l.Add(time.Duration(i)*time.Second, soakKey{Of: "daemon-0", Figure: "other"}, float64(i)*1e9)
	}
	for i := range 100 {
		l.Add(time.Duration(i+20)*time.Second, soakKey{Of: "started later", Figure: "heap"}, float64(i)*1e9)
		if i < 80 {
			l.Add(time.Duration(i)*time.Second, soakKey{Of: "ended earlier", Figure: "heap"}, float64(i)*1e9)
		}
	}
	all := l.Judge(0, []soakRule{soakedRule}, 0)
	require.Len(t, all, 4)
	for _, v := range all {
		require.False(t, v.Judged || v.Rose)
	}
}
