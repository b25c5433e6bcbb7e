package uicheck

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// Two people have the same call in doubt on their screens. One settles it. The other is told so, and changes nothing.
func TestTwoBrowsers_SettleTheSameCall_OneWinsAndTheOtherIsToldWhoDid(t *testing.T) {
	s := newScene(t)
	s.stage.Fill()
	first, second := s.open(), s.open()
	for _, b := range []*tab{first, second} {
		b.show("/needs-you")
		b.await(`document.querySelector('article.held[id^="payout-7."] button[value=abandoned]') !== null && document.querySelector("#pause").hidden === false`)
	}
	second.click("#pause") // the page stays as it was
	first.click(`article.held[id^="payout-7."] button[value=abandoned]`)
	first.await(`document.querySelector(".said")?.innerText.includes("payout-7: call p settled as abandoned, as ann.") ?? false`)
	first.await(`document.querySelector('article.held[id^="payout-7."]') === null`)
	second.click(`article.held[id^="payout-7."] button[value=rerun]`)
	second.await(`document.body.innerText.includes("settled meanwhile as abandoned by ann")`)
	require.Contains(t, eval[string](second, "document.body.innerText"), "nothing was changed")
	require.Equal(t, schema.OutcomeAbandoned, s.stage.State("payout-7").Calls[0].Outcome)
	first.clean()
}

// A rewind is confirmed on a page that lists the work it leaves behind.
func TestActions_Rewind_IsConfirmed(t *testing.T) {
	s := newScene(t)
	s.stage.Fill()
	b := s.open()
	b.show("/run/fix-login/act/rewind?at=record:4")
	require.Contains(t, eval[string](b, "document.body.innerText"), "They stay in the log, but are no longer part of the run.")
	before := len(s.stage.State("fix-login").Messages)
	b.click(`form.act button.no`)
	b.await(`document.querySelector(".said")?.innerText.includes("fix-login continues after record:4, as ann decided") ?? false`)
	require.Less(t, len(s.stage.State("fix-login").Messages), before)
	b.clean()
}

// An executor is killed while its run is open in a browser. The page shows its silence, the orphaned run and the takeover without a reload. On an
// idle machine each takes less than a second; the limits are for a loaded one.
func TestLive_ExecutorIsKilled_AppearsWithoutReload(t *testing.T) {
	const silence, heartbeat, seen = 3 * time.Second, 900 * time.Millisecond, 3 * time.Second
	s := newSceneWith(t, waymarktest.Config{Silence: silence})
	nc := s.stage.Conn()
	box, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "box-1", Agent: "coder"})
	require.NoError(t, err)
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "watched", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	other := s.stage.Executor("box-2")
	_, err = other.Start(t.Context(), publisher.RunSpec{ID: "other", Agent: "coder"})
	require.NoError(t, err)
	events, err := s.stage.Conn().SubscribeSync(schema.ObservedSubject(schema.DefaultFleet, "*.*", "watched"))
	require.NoError(t, err)
	list, page := s.open(), s.open()
	list.sized(1000, "light")
	list.show("/executors")
	page.show("/run/watched")
	for _, b := range []*tab{list, page} {
		b.await(`document.querySelector("#pause").hidden === false && /heard|ago/.test(document.body.innerText)`)
		eval[bool](b, "window.same = true")
	}
	took := func(what string, since time.Time, limit time.Duration) {
		t.Helper()
		t.Logf("%s is seen within %s", what, time.Since(since).Round(time.Millisecond))
		require.Less(t, time.Since(since), limit, what)
	}
	killed := time.Now()
	nc.Close() // as if its machine failed
	page.await(`/silent for .*orphaned/.test(document.querySelector(".runbar").innerText)`)
	took("its silence", killed, 4*time.Second) // silence shows after one and a half heartbeats, and pages are rendered at least every five seconds
	list.await(`document.querySelector("tr.asks td.wait")?.innerText.startsWith("silent for") ?? false`)
	_, err = events.NextMsg(4 * silence)
	require.NoError(t, err)
	orphaned := time.Now()
	page.await(`document.querySelector(".runbar .facts b").innerText === "orphaned"`)
	took("the orphaned run", orphaned, seen)
	_, err = other.Resume(t.Context(), "watched", publisher.ResumeSpec{})
	require.NoError(t, err)
	taken := time.Now()
	page.await(`[...document.querySelectorAll("tr.line.takeover")].some((l) => l.innerText.includes("box-2"))`)
	took("the takeover", taken, seen)
	for _, b := range []*tab{list, page} {
		require.True(t, eval[bool](b, "window.same === true"), "it was not loaded again")
		b.clean()
	}
}

// A second click comes while the first is carried out, or after it: the page that the first one asked for is not there yet.
func TestActions_DoubleClick_IsDoneOnce(t *testing.T) {
	s := newScene(t)
	run, err := s.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "busy", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	b := s.open()
	for i, pause := range []int{1, 10, 30, 100} {
		b.show("/run/busy/act")
		b.await(`document.querySelector("#pause").hidden === false`)
		eval[bool](b, fmt.Sprintf(`(() => {
			const form = document.querySelector('form[action="/run/busy/act/signal"]');
			form.elements.text.value = "message %d";
			const click = () => form.querySelector("button").click();
			click();
			setTimeout(click, %d);
			return true;
		})()`, i, pause))
		b.await(`document.querySelector(".said")?.innerText.includes("Sent to busy, as ann.") ?? false`)
		require.Len(t, s.stage.State("busy").Signals, i+1)
	}
	b.clean()
}

// A person ticks "all" of 12 questions. One more comes before the click: it was not shown, and is not answered.
func TestNeedsYou_QuestionComesAfterAllIsTicked_IsNotAnswered(t *testing.T) {
	s := newScene(t)
	s.stage.Night()
	b := s.open()
	b.show("/needs-you")
	b.await(`document.querySelectorAll("article.thing").length === 12 && document.querySelector("#pause").hidden === false`)
	b.click("details.group summary")
	b.click("details.group input[name=all]")
	ask := func(n int) {
		run, err := s.stage.Executor("support-2").Start(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("refund-%d", n), Agent: "support"})
		require.NoError(t, err)
		require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{
			InterruptID: "refund", Reason: schema.WaitHumanInput, Message: "How much?",
			ResponseSchema: []byte(`{"type":"object","properties":{"percent":{"type":"integer","title":"Percent","minimum":0,"maximum":100}},"required":["percent"]}`),
		}))
		b.await(fmt.Sprintf(`document.querySelectorAll("article.thing").length === %d && document.querySelector("details.group summary").innerText.includes("%d similar")`, n, n))
	}
	const every = `document.querySelectorAll("details.group input[name=every]").length`
	ask(13)
	require.Equal(t, 12, eval[int](b, every))
	require.True(t, eval[bool](b, `document.querySelector("details.group input[name=all]").checked`))
	b.click("details.group input[name=all]")
	ask(14)
	require.Equal(t, 14, eval[int](b, every), "the next tick is of all that is shown")
	b.click("details.group input[name=all]")
	ask(15)
	eval[bool](b, `(() => { const f = document.querySelector("details.group form"); f.elements["f.0"].value = "50"; f.querySelector("button[value=answer]").click(); return true; })()`)
	b.await(`document.body.innerText.includes("refund-14: answered, as ann.")`)
	require.Nil(t, s.stage.State("refund-15").Waits[0].Input)
	b.clean()
}
