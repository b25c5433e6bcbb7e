package uicheck

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// Two people have the same call in doubt on their screens. One settles it; the other is told who did, and nothing is changed.
func TestTwoBrowsers_SettleTheSameCall_OneWinsAndTheOtherIsToldWhoDid(t *testing.T) {
	s := newScene(t)
	s.stage.Fill()
	first, second := s.open(), s.open()
	for _, b := range []*tab{first, second} {
		b.show("/needs-you")
		b.await(`document.querySelector('article.held[id^="payout-7."] button[value=abandoned]') !== null && document.querySelector("#pause").hidden === false`)
	}
	second.click("#pause") // a person who reads: the form stays as it was
	first.click(`article.held[id^="payout-7."] button[value=abandoned]`)
	first.await(`document.querySelector(".said")?.innerText.includes("payout-7: call p settled as abandoned, as ann.") ?? false`)
	first.await(`document.querySelector('article.held[id^="payout-7."]') === null`)
	second.click(`article.held[id^="payout-7."] button[value=rerun]`)
	second.await(`document.body.innerText.includes("settled meanwhile as abandoned by ann")`)
	require.Contains(t, eval[string](second, "document.body.innerText"), "nothing was changed")
	require.Equal(t, schema.OutcomeAbandoned, s.stage.State("payout-7").Calls[0].Outcome)
	first.clean()
}

// Going back to a point takes a page that says what is left behind, and a second click.
func TestActions_Rewind_TakesTwoClicks(t *testing.T) {
	s := newScene(t)
	s.stage.Fill()
	b := s.open()
	b.show("/run/fix-login/state?at=record:4")
	b.click(`a[href="/run/fix-login/act/rewind?at=record%3a4"]`)
	b.awaitPath("/run/fix-login/act/rewind")
	require.Contains(t, eval[string](b, "document.body.innerText"), "They stay in the log, and are no part of the run any more.")
	before := len(s.stage.State("fix-login").Messages)
	b.click(`form.act button.no`)
	b.await(`document.querySelector(".said")?.innerText.includes("fix-login goes on behind record:4, as ann decided") ?? false`)
	require.Less(t, len(s.stage.State("fix-login").Messages), before)
	b.clean()
}
