package shop

var stock = 3
