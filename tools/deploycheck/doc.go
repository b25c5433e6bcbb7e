// Package deploycheck hands the files in deploy to the programs that will read them: Kubernetes' own types by way of
// kustomize, the readers of compose files and Dockerfiles, Prometheus' readers of rules and of PromQL. What these do not
// reject and would still be wrong here (a container that may write to its image, two alerts of one name, a panel that
// lies outside the page) its tests say.
//
// It is a module of its own, so that what these readers need is not among Waymark's dependencies. Versions are pinned in
// its go.mod. "make deploycheck" runs it, and so does "make check-full".
//
// It owns no code that is shipped. Its longest test lets real daemons and NATS servers fail, and writes docs/failures.md.
//
// What the NATS server and systemd read is tried by the tests in deploy, with the server
// that Waymark embeds; that alerts and dashboard name metrics which exist, by those of internal/cli/serve. No reader of Grafana's is to be had
// as a Go module; its page is decoded strictly into the members that Grafana 12 documents, and its expressions are parsed.
package deploycheck
