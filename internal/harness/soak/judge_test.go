package soak_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/soak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	key  = soak.Key{Of: "daemon-0", Figure: "heap"}
	rule = soak.Rule{Figure: "heap", Share: 0.2, Least: 10}
)

// judged is the verdict on a figure that is value(i) at the second i of a thousand, judged from the hundredth on.
func judged(t require.TestingT, value func(i int) float64, r soak.Rule, removed int) soak.Verdict {
	var l soak.Log
	for i := range 1000 {
		l.Add(time.Duration(i)*time.Second, key, value(i))
	}
	all := l.Judge(100*time.Second, []soak.Rule{r}, removed)
	require.Len(t, all, 1)
	require.Equal(t, 900, all[0].Points)
	require.True(t, all[0].Judged)
	return all[0]
}

func TestJudge_Steady_Flat(t *testing.T) {
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
			v := judged(t, value, rule, 0)
			require.False(t, v.Rose, "%s", v)
		})
	}
}

func TestJudge_Leak_Found(t *testing.T) {
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
			v := judged(t, value, rule, 0)
			require.True(t, v.Rose, "%s", v)
			require.Contains(t, v.String(), "heap of daemon-0: 1")
		})
	}
}

// TestJudge_SteadyRise_FoundFromThreshold draws rises and rules: the verdict is the one that arithmetic gives.
func TestJudge_SteadyRise_FoundFromThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.Float64Range(0, 1e6).Draw(t, "level")
		rise := rapid.Float64Range(0, 1000).Draw(t, "a second")
		r := soak.Rule{
			Figure: "heap", Share: rapid.Float64Range(0, 1).Draw(t, "share"), Least: rapid.Float64Range(0, 1e5).Draw(t, "least"),
			PerRun: rapid.Float64Range(0, 10).Draw(t, "per run"),
		}
		removed := rapid.IntRange(0, 1000).Draw(t, "removed")
		v := judged(t, func(i int) float64 { return level + rise*float64(i) }, r, removed)
		first := level + rise*(100+899.0/6)
		allowed := max(r.Share*first, r.Least) + r.PerRun*float64(removed)*2/3
		rose := rise * 899 * 2 / 3
		if math.Abs(rose-allowed) < 1+2*rise { // the medians are of whole seconds
			return
		}
		require.Equal(t, rose > allowed, v.Rose, "%s", v)
	})
}

func TestJudge_RemovedRuns_LeaveAllowed(t *testing.T) {
	leaves := func(i int) float64 { return 100 + float64(i)*3 } // 3 for each run, one a second
	require.True(t, judged(t, leaves, rule, 900).Rose)
	r := rule
	r.PerRun = 3
	require.False(t, judged(t, leaves, r, 900).Rose)
	require.True(t, judged(t, func(i int) float64 { return 100 + float64(i)*4 }, r, 900).Rose)
}

func TestJudge_TooFewPoints_NotJudged(t *testing.T) {
	var l soak.Log
	for i := range 8 {
		l.Add(time.Duration(i)*time.Second, key, float64(i)*1e9)
	}
	for i := range 100 {
		l.Add(time.Duration(i)*time.Second, soak.Key{Of: "daemon-0", Figure: "other"}, float64(i)*1e9)
	}
	for i := range 100 {
		l.Add(time.Duration(i+20)*time.Second, soak.Key{Of: "started later", Figure: "heap"}, float64(i)*1e9)
		if i < 80 {
			l.Add(time.Duration(i)*time.Second, soak.Key{Of: "ended earlier", Figure: "heap"}, float64(i)*1e9)
		}
	}
	all := l.Judge(0, []soak.Rule{rule}, 0)
	require.Len(t, all, 4)
	for _, v := range all {
		require.False(t, v.Judged || v.Rose)
	}
}

func TestReport_TableAndFile_HaveEveryFigure(t *testing.T) {
	var l soak.Log
	for i := range 100 {
		l.Add(time.Duration(i)*time.Second, key, 1<<20+float64(i)*(1<<20))
		l.Add(time.Duration(i)*time.Second, soak.Key{Of: "server-0", Figure: "heap"}, 70)
	}
	var text strings.Builder
	require.NoError(t, soak.Write(&text, l.Judge(0, []soak.Rule{rule}, 0)))
	require.Regexp(t, `heap +│ daemon-0 +│ +100 │ 17.5 Mi .*│ 66.0 Mi +│ 3584.0 Ki +│ ROSE`, text.String())
	require.Regexp(t, `heap +│ server-0 +│ +100 │ 70 +│ 70 +│ 0 .*│ flat`, text.String())

	text.Reset()
	require.NoError(t, l.WriteCSV(&text))
	require.Equal(t, 201, strings.Count(text.String(), "\n"))
	require.Contains(t, text.String(), "seconds,of,figure,value\n0.0,daemon-0,heap,1048576\n1.0,daemon-0,heap,2097152\n")
}
