// Command dist makes what a release consists of, in one folder: an archive for each platform with the binary, its licences and its manual
// page; a list of parts for each platform; .deb and .rpm packages; an OCI image; and the checksums of all.
//
//	go run -C tools/dist . -out "$PWD/.bin/dist"
//
// "make dist" runs it, "make distcheck" its tests, which install the packages. It is a module of its own, so that what makes packages and
// images is not in the product's go.mod.
//
// # What it promises
//
// The same commit, version and Go release give the same bytes, on any machine and in any folder: times are those of the commit, owners are
// root, orders are fixed. It builds what is committed, in a clone of its own, and the binaries say the version and the commit.
//
// # What it needs
//
// git, and the Go toolchain. The packages and the image are written by libraries: no dpkg, no rpmbuild, no Docker.
package main
