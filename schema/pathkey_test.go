package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestPathKey_SpellingsOfOneFile_AreEqual(t *testing.T) {
	for name, spellings := range map[string][]string{
		"drive":               {`C:\Work\Ann\main.go`, `c:\work\ann\MAIN.GO`, `C:/Work/Ann/main.go`, `C:\Work/Ann\main.go`, `C:\\Work\\Ann\\main.go`, `C://Work/Ann/main.go`, `C:\Work\Bob\..\Ann\.\main.go`, `\\?\C:\Work\Ann\main.go`, `\\.\C:\Work\Ann\main.go`, `file:///C:/Work/Ann/main.go`, `file://localhost/c:/Work/Ann/main.go`},
		"URI with one slash":  {`C:\A\b`, `file:/C:/a/b`, `file:C:/a/b`, `FILE:/c%3A/a/b`, `file:///C:/a/b`},
		"ends of names":       {`C:\a\b`, `C:\a\b.`, `C:\a\b `, `C:\a\b. .`, `C:\a.\b`, `C:\a\b.\`, `c:/a/b...`},
		"ends on a share":     {`\\h\s\a`, `\\h\s\a.`, `//h/s/a `},
		"URI on POSIX":        {`/a/b`, `file:/a/b`, `//a/b`[1:], `file:///a/b`},
		"root of a drive":     {`C:\`, `c:/`, `C:\a\..`, `C:\..`},
		"drive, no root":      {`C:main.go`, `c:.\Main.go`, `C:a\..\main.go`},
		"share":               {`\\Server\Share\a\b.go`, `//server/share/A/B.go`, `\\server/share\a/b.go`, `\\?\UNC\server\share\a\b.go`, `\\server\share\..\a\b.go`, `file://server/share/a/b.go`},
		"root of a share":     {`\\server\share`, `\\server\share\`, `//SERVER/SHARE/`},
		"volume by its name":  {`\\?\Volume{1}\a`, `\\?\volume{1}\A`},
		"relative":            {`src\auth\login.go`, `src/auth/login.go`, `src\auth/login.go`, `.\src\auth\login.go`, `./src//auth/login.go`, `src/x/../auth/login.go`},
		"above":               {`..\a.go`, `../a.go`, `..\b\..\a.go`},
		"POSIX":               {`/srv/ann/main.go`, `/srv//ann/./main.go`, `file:///srv/ann/main.go`},
		"file of odd letters": {`C:\Ünïcode\a b.go`, `c:/ünÏcode/A B.go`, `file:///C:/%C3%9Cn%C3%AFcode/a%20b.go`},
	} {
		for _, spelling := range spellings {
			require.Equal(t, schema.PathKey(spellings[0]), schema.PathKey(spelling), "%s: %s", name, spelling)
			require.Equal(t, schema.PathKey(spelling), schema.PathKey(schema.PathKey(spelling)), "the key of a key is itself: %s", spelling)
		}
	}
}

func TestPathKey_DifferentFiles_Differ(t *testing.T) {
	files := []string{
		``, `main.go`, `Main.go`, `src/main.go`, `/main.go`, `/Main.go`, `C:\main.go`, `D:\main.go`, `C:main.go`, `\\server\share\main.go`, `\\server\second\main.go`,
		`\\main.go`, `s3://bucket/main.go`, `s3://bucket/Main.go`, `s3://bucket//main.go`, `https://host/a/../main.go`, `/c/main.go`,
		`/a.`, `/a `, `/a`, `file:a`, `C:\b..\c`, `C:\b\c`, `C:\a\...\b`, `C:\a\b`,
	}
	seen := make(map[string]string)
	for _, file := range files {
		key := schema.PathKey(file)
		if file == `\\main.go` { // a share has a name behind its host
			require.Equal(t, schema.PathKey(`/main.go`), key)
			continue
		}
		require.Empty(t, seen[key], "%s has the key of it", file)
		seen[key] = file + " "
	}
}
