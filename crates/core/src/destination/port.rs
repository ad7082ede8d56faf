//! Which ports a delivery may be sent to.

/// The bad ports of the Fetch standard, where a request could be taken for a command of another protocol, and 0.
const NOT_FOR_THE_WEB: [u16; 83] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110, 111, 113,
    115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531, 532, 540, 548, 554, 556,
    563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667,
    6668, 6669, 6679, 6697, 10080,
];

/// Databases, caches, queues and orchestrators: nobody's webhook listens there, and some of them would do as they are told.
const SERVICES: [u16; 22] = [
    445, 1433, 1521, 2375, 2376, 2379, 2380, 3306, 5432, 5672, 5984, 6379, 6443, 7000, 8086, 9042, 9092, 9200, 9300, 10250, 11211,
    27017,
];

pub(super) fn may_be_spoken_to(port: u16) -> bool {
    NOT_FOR_THE_WEB.binary_search(&port).is_err() && SERVICES.binary_search(&port).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_are_in_order_or_the_search_would_miss() {
        assert!(NOT_FOR_THE_WEB.is_sorted());
        assert!(SERVICES.is_sorted());
    }
}
