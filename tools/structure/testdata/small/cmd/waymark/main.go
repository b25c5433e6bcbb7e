// Command waymark is small.
package main

import "example.org/small/shop"

func main() { shop.Open() }
