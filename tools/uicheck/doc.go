// Package uicheck looks at the inspector in a real browser, headless Chromium: how its pages look at three widths in light and dark, whether
// they are accessible, whether anything of a hostile run is obeyed, whether they change as the fleet does, and how fast they are.
//
// It has no code of its own but tests, and is a module of its own: builds of Waymark do not need a browser driver. "make uicheck" runs
// it, with the rules of axe-core from npm. Screenshots are written to WAYMARK_UI_SHOTS, if it is set. Where there is no Chromium the tests
// are skipped, and say so.
package uicheck
