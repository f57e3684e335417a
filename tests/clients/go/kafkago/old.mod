module mainstem/kafkago

go 1.24

require (
	github.com/segmentio/kafka-go v0.4.0
	mainstem/lines v0.0.0
)

require (
	github.com/golang/snappy v0.0.1 // indirect
	github.com/klauspost/compress v1.9.8 // indirect
	github.com/pierrec/lz4 v2.0.5+incompatible // indirect
)

replace mainstem/lines => ../lines
