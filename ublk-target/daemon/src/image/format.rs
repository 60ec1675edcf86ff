//! Images that are not raw: told by how they begin, or end, and only to refuse them. What a disk holds was written by whoever used it, so that
//! nothing is ever read from it by a format that it names itself.

/// A VHD's footer.
pub(super) const FOOTER: usize = 512;

/// The format that what ends like this is in: a VHD of fixed size has no head, and is the disk's bytes with a footer behind them.
pub(super) fn of_end(last: &[u8; FOOTER]) -> Option<&'static str> {
    last.starts_with(b"conectix").then_some("vpc")
}

/// The format that what begins like this is in, as qemu-img's `-f` calls it; none if it may be raw.
///
/// Magic numbers: docs/interop/qcow2 and block/{qcow,vdi,vpc}.c of QEMU, MS-VHDX 2.2.1, VMware's Virtual Disk Format 5.0.
pub(super) fn of(head: &[u8]) -> Option<&'static str> {
    let begins: [(&[u8], &str); 7] = [
        (b"QFI\xfb\0\0\0\x01", "qcow"),
        (b"QFI\xfb", "qcow2"),
        (b"KDMV", "vmdk"),
        (b"# Disk DescriptorFile", "vmdk"),
        (b"vhdxfile", "vhdx"),
        (b"conectix", "vpc"),
        (b"QED\0", "qed"),
    ];
    let begun = begins.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, format)| *format);
    // VDI has a text for people in front.
    begun.or_else(|| head.get(0x40..).is_some_and(|rest| rest.starts_with(&[0x7f, 0x10, 0xda, 0xbe])).then_some("vdi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_vhd_is_told_by_its_end() {
        let mut last = [0; FOOTER];
        assert_eq!(of_end(&last), None);
        last[..8].copy_from_slice(b"conectix");
        assert_eq!(of_end(&last), Some("vpc"));
    }

    #[test]
    fn an_image_is_told_by_its_beginning() {
        let vdi = [[b'<'; 0x40].as_slice(), &[0x7f, 0x10, 0xda, 0xbe]].concat();
        assert_eq!((of(b"QFI\xfb\0\0\0\x03"), of(b"QFI\xfb\0\0\0\x01")), (Some("qcow2"), Some("qcow")));
        assert_eq!((of(b"KDMV\x01"), of(b"vhdxfile"), of(&vdi)), (Some("vmdk"), Some("vhdx"), Some("vdi")));
        assert_eq!((of(b""), of(&[0; 512]), of(&vdi[1..]), of(b"QFI")), (None, None, None, None));
    }
}
