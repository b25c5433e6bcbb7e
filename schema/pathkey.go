package schema

import (
	"net/url"
	"path"
	"strings"
)

// PathKey returns the key by which paths of files are compared: two paths name the same file if their keys are equal. It is the one rule
// for the files of hand-offs and for artifacts, whatever system their agents run on and whatever system compares them:
//
//   - `/` and `\` both separate; empty elements, `.` and `..` are resolved;
//   - upper and lower case are the same below a drive (C:\) and a share (\\host\share), which only Windows has, and differ elsewhere;
//   - there, as Windows has it, a name ends without one dot, and the last one without dots and spaces: `C:\a.` and `C:\a ` are `C:\a`;
//   - `\\?\C:\x` is `C:\x`, `\\?\UNC\host\share` is `\\host\share`, and C:x, which depends on the current directory of the drive, is not C:\x;
//   - a file: URI of RFC 8089 is the path that it names, file:/C:/x and file:C:/x included; other URIs are compared as they are;
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

// trimNames takes the dots and spaces from the ends of names that Windows takes from them.
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

// DistinctPaths returns each file once by its [PathKey], spelled as it was named first.
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
