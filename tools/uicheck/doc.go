// Package uicheck looks at the inspector in a real browser, headless Chromium: their layout at three widths in light and dark, their
// accessibility, their safety against content of a hostile run, their live updates, and their speed.
//
// It has only tests, and is a separate module, so that builds of Waymark do not need a browser driver. "make uicheck" runs
// it, with the rules of axe-core from npm. Screenshots are written to WAYMARK_UI_SHOTS, if it is set. Without Chromium the tests are
// skipped.
package uicheck
