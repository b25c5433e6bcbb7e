// Package uicheck looks at the inspector in a real browser, headless Chromium: their layout at three widths in light and dark, their
// accessibility, their safety against content of a hostile run, their live updates, and their speed.
//
// It has only tests, and is a separate module, so that builds of Waymark do not need a browser driver. "make uicheck" runs
// it, with axe-core and Claude Code from npm. "go test -C tools/uicheck -update" writes the pictures in docs/pictures. Without Chromium the tests of pages are skipped. WAYMARK_UI_FULL=1 measures the bars at full size, and WAYMARK_UI_RUNS sets the number of runs in the list.
package uicheck
