package publisher

import (
	"errors"
	"net/url"
	"strings"
)

// withoutSecrets is a list of servers' addresses as an error may show them: without the user, password or token that may stand in front
// of a host.
func withoutSecrets(addresses string) string {
	list := strings.Split(addresses, ",")
	for i, address := range list {
		scheme, rest, ok := strings.Cut(strings.TrimSpace(address), "://")
		if !ok {
			scheme, rest = "", scheme
		} else {
			scheme += "://"
		}
		list[i] = scheme + rest[strings.LastIndexByte(rest, '@')+1:]
	}
	return strings.Join(list, ",")
}

// unaddressed is an error of connecting without the address that could not be parsed, which it quotes as it was given.
func unaddressed(err error) error {
	if parse, ok := errors.AsType[*url.Error](err); ok {
		return parse.Err
	}
	return err
}
