package schema

import (
	"net/url"
	"path"
	"strings"
)

// PathKey returns the key by which file paths are compared: two paths name the same file if their keys are equal. It
// is the one rule for the files of hand-offs and for artifacts, on whatever system their agents and the comparing
// process run:
//
//   - `/` and `\` both separate; empty elements, `.` and `..` are resolved;
//   - upper and lower case are equal below a drive (C:\) and a share (\\host\share), which only Windows has, and differ elsewhere;
//   - there, as on Windows, one dot at the end of a name is dropped, and all dots and spaces at the end of the last: `C:\a.` and `C:\a ` are `C:\a`;
//   - `\\?\C:\x` is `C:\x`, `\\?\UNC\host\share` is `\\host\share`, and C:x, which depends on the current directory of the drive, is not C:\x;
//   - a file: URI of RFC 8089 is the path in it, file:/C:/x and file:C:/x included; other URIs are compared unchanged;
//   - `\\host` alone is no share, and `//x` is `/x`, as on POSIX.
func PathKey(file string) string {
	if scheme, rest, ok := strings.Cut(file, ":"); ok && strings.EqualFold(scheme, "file") && !strings.HasPrefix(rest, "//") {
		if strings.HasPrefix(rest, "/") || hasDrive(rest) {
			file = "file:///" + strings.TrimPrefix(rest, "/")
		}
	}
	if scheme, rest, ok := strings.Cut(file, "://"); ok && len(scheme) > 1 { // one letter is a drive
		if !strings.EqualFold(scheme, "file") {
			return file
		}
		if decoded, err := url.PathUnescape(rest); err == nil {
			rest = decoded
		}
		switch host, below, _ := strings.Cut(rest, "/"); {
		case host != "" && !strings.EqualFold(host, "localhost"):
			file = "//" + rest
		case hasDrive(below):
			file = below
		default:
			file = "/" + below
		}
	}
	if file == "" {
		return ""
	}
	key := strings.ReplaceAll(file, `\`, "/")
	for _, device := range []string{"//?/", "//./"} {
		below, ok := strings.CutPrefix(key, device)
		switch {
		case !ok:
		case hasDrive(below):
			key = below
		case len(below) > 4 && strings.EqualFold(below[:4], "UNC/"):
			key = "//" + below[4:]
		}
	}
	host, below, _ := strings.Cut(strings.TrimPrefix(key, "//"), "/")
	switch share, below, _ := strings.Cut(below, "/"); {
	case hasDrive(key):
		return strings.ToLower(key[:2] + trimNames(path.Clean(key[2:])))
	case strings.HasPrefix(key, "//") && host != "" && share != "":
		return strings.ToLower("//" + host + "/" + share + trimNames(path.Clean("/"+below)))
	}
	return path.Clean(key)
}

// trimNames removes the dots and spaces at the ends of names that Windows removes.
func trimNames(clean string) string {
	names := strings.Split(clean, "/")
	for i, name := range names {
		short := name
		switch {
		case i == len(names)-1:
			short = strings.TrimRight(name, " .")
		case !strings.HasSuffix(name, ".."):
			short = strings.TrimSuffix(name, ".")
		}
		if short != "" {
			names[i] = short
		}
	}
	return strings.Join(names, "/")
}

// hasDrive reports whether a path begins with a drive letter.
func hasDrive(file string) bool {
	return len(file) >= 2 && file[1] == ':' && (file[0]|0x20) >= 'a' && (file[0]|0x20) <= 'z'
}

// DistinctPaths returns each file once by its [PathKey], in its first spelling.
func DistinctPaths(files []string) []string {
	var kept []string
	seen := make(map[string]bool, len(files))
	for _, file := range files {
		if key := PathKey(file); !seen[key] {
			seen[key] = true
			kept = append(kept, file)
		}
	}
	return kept
}
